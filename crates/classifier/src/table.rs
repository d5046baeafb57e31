//! A classifier that can be changed at once.

use std::sync::Arc;

use dpdk::Eal;
use netvm_policy::{Cube, Edit};
use netvm_wire::FlowKey;

use crate::overlay::{Overlay, same};
use crate::{BuildError, Classifier, Limits};

/// A compiled list of entries, and what has changed in the list since.
///
/// Cloning and changing share what is compiled. What has changed is looked up in lists that are quickly made and not as
/// quickly looked through, so a table with changes is for the time until the next build is done.
#[derive(Debug)]
pub struct Table<T: ?Sized> {
    base: Arc<Base<T>>,
    overlay: Option<Arc<Overlay>>,
    /// The list that it is for.
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

    /// The same table for a list that differs little, without compiling anything; `None` if more has changed than is
    /// good to look through: 1,024 entries added with 4,096 cubes, or 1,024 entries gone that share packets with 131,072 cubes behind them, counted from the list that was
    /// compiled. Soonest where lists share their entries with each other.
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

    /// Writes the number of the first entry that contains the key, or [`NONE`](crate::NONE), for as many keys as both
    /// slices have. Does not allocate.
    #[inline]
    pub fn classify(&self, keys: &[FlowKey], out: &mut [u32]) {
        self.base.classifier.classify(keys, out);
        if let Some(overlay) = &self.overlay {
            overlay.correct(keys, out);
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
