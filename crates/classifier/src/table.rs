// SPDX-License-Identifier: Apache-2.0
//! A classifier with fast changes.

use std::sync::Arc;

use dpdk::Eal;
use netvm_policy::{Cube, Edit};
use netvm_wire::FlowKey;

use crate::overlay::{Overlay, same};
use crate::{BuildError, Classifier, Limits};

/// A compiled list of entries and the changes since.
///
/// Clones and changed tables share the compiled part. Changes are quick to add but slower to look up, for the time
/// until the next build.
#[derive(Debug)]
pub struct Table<T: ?Sized> {
    base: Arc<Base<T>>,
    overlay: Option<Arc<Overlay>>,
    /// The current list.
    entries: Arc<[Arc<T>]>,
}

#[derive(Debug)]
struct Base<T: ?Sized> {
    classifier: Classifier,
    entries: Arc<[Arc<T>]>,
}

impl<T: ?Sized + AsRef<[Cube]>> Table<T> {
    /// Compiles the entries.
    ///
    /// # Errors
    /// As [`Classifier::build`].
    pub fn build(eal: Eal, entries: impl Into<Arc<[Arc<T>]>>, limits: &Limits) -> Result<Self, BuildError> {
        let entries = entries.into();
        let cubes: Vec<&[Cube]> = entries.iter().map(|entry| (**entry).as_ref()).collect();
        let classifier = Classifier::build(eal, &cubes, limits)?;
        Ok(Self {
            base: Arc::new(Base { classifier, entries: Arc::clone(&entries) }),
            overlay: None,
            entries,
        })
    }

    /// The table for a slightly different list, without a build; `None` if too much has changed since the build: 1,024
    /// added entries with 4,096 cubes, or 1,024 removed entries that intersect 131,072 later cubes. Fastest if lists
    /// share entries.
    #[must_use]
    pub fn changed(&self, entries: impl Into<Arc<[Arc<T>]>>) -> Option<Self> {
        let (base, entries) = (&self.base.entries, entries.into());
        let before = self.overlay.as_deref();
        let edit = Edit::between(&self.entries, &entries, same);
        let overlay = Overlay::edited(base, before, &entries, edit)
            .or_else(|| Overlay::between(base, &entries, before))?;
        let overlay = (overlay.changes() > 0).then(|| Arc::new(overlay));
        Some(Self { base: Arc::clone(&self.base), overlay, entries })
    }

    /// Writes for each key the number of the first entry that contains it, or [`NONE`](crate::NONE), up to the shorter
    /// slice.
    /// Does not allocate.
    #[inline]
    pub fn classify(&self, keys: &[FlowKey], out: &mut [u32]) {
        self.base.classifier.classify(keys, out);
        if let Some(overlay) = &self.overlay {
            overlay.correct(keys, out);
        }
    }

    /// Number of removed and added entries since the build.
    #[must_use]
    pub fn changes(&self) -> usize {
        self.overlay.as_ref().map_or(0, |overlay| overlay.changes())
    }

    /// The compiled part.
    #[must_use]
    pub fn classifier(&self) -> &Classifier {
        &self.base.classifier
    }
}
