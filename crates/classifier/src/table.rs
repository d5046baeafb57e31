//! A classifier that can be changed at once.

use std::sync::Arc;

use dpdk::Eal;
use netvm_policy::Cube;
use netvm_wire::FlowKey;

use crate::overlay::Overlay;
use crate::{BuildError, Classifier, Limits};

/// A compiled list of entries, and what has changed in the list since.
///
/// Cloning and changing share what is compiled. Packets for which an entry counts that is gone look through those behind
/// it one by one, so a table with changes is for the time until the next build is done.
#[derive(Clone, Debug)]
pub struct Table {
    base: Arc<Base>,
    overlay: Option<Arc<Overlay>>,
}

#[derive(Debug)]
struct Base {
    classifier: Classifier,
    entries: Vec<Box<[Cube]>>,
}

impl Table {
    /// Compiles the entries.
    ///
    /// # Errors
    /// As [`Classifier::build`].
    pub fn build(eal: Eal, entries: &[impl AsRef<[Cube]>], limits: &Limits) -> Result<Self, BuildError> {
        let classifier = Classifier::build(eal, entries, limits)?;
        let entries = entries.iter().map(|entry| entry.as_ref().into()).collect();
        Ok(Self { base: Arc::new(Base { classifier, entries }), overlay: None })
    }

    /// The same table for a list that differs little, without compiling anything; `None` if more has changed than is
    /// good to look through: 64 entries added with 256 cubes, or 64 entries gone, counted from the list that was
    /// compiled. Takes 200 us at most for 1,000 entries.
    #[must_use]
    pub fn changed(&self, entries: &[impl AsRef<[Cube]>]) -> Option<Self> {
        let new: Vec<&[Cube]> = entries.iter().map(AsRef::as_ref).collect();
        let overlay = Overlay::between(&self.base.entries, &new)?;
        let overlay = (overlay.changes() > 0).then(|| Arc::new(overlay));
        Some(Self { base: Arc::clone(&self.base), overlay })
    }

    /// Writes the number of the first entry that contains the key, or [`NONE`](crate::NONE), for as many keys as both
    /// slices have. Does not allocate.
    #[inline]
    pub fn classify(&self, keys: &[FlowKey], out: &mut [u32]) {
        self.base.classifier.classify(keys, out);
        if let Some(overlay) = &self.overlay {
            overlay.correct(&self.base.entries, keys, out);
        }
    }

    /// Entries that are gone and entries that are added since the list was compiled.
    #[must_use]
    pub fn changes(&self) -> usize {
        self.overlay.as_ref().map_or(0, |overlay| overlay.changes())
    }

    /// What is compiled.
    #[must_use]
    pub fn classifier(&self) -> &Classifier {
        &self.base.classifier
    }
}
