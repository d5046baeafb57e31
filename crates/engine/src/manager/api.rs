//! The calls of an [`Engine`], for other crates: each goes to the manager of its part.

use super::Engine;
use super::captures::{CaptureError, CaptureSpec, CaptureStarted, Numbering, PreparedCapture};
use crate::ids::CaptureId;

/// Captures.
impl Engine {
    /// Starts a capture: from now on, workers write records to its rings, which [`CaptureSpec::prepare`] has made for
    /// each worker.
    ///
    /// # Errors
    /// [`CaptureError`] says what is wrong with the request.
    pub fn start_capture(
        &mut self,
        spec: &CaptureSpec,
        prepared: PreparedCapture,
    ) -> Result<CaptureStarted, CaptureError> {
        let numbering = Numbering { host: &self.host, shortened: self.chains.shortened() };
        let started = self.captures.start(spec, prepared, numbering, &mut self.workers)?;
        self.publish_in_order();
        Ok(started)
    }

    /// Ends a capture; does nothing if it has ended.
    pub fn stop_capture(&mut self, id: CaptureId) {
        if self.captures.stop(id, &mut self.workers) {
            self.publish_in_order();
        }
    }
}
