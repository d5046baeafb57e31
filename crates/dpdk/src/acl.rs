// SPDX-License-Identifier: Apache-2.0
//! DPDK's `rte_acl`: classifies bursts of keys by the matching rule of highest priority.
//!
//! A key is an array of bytes, its fields in network order:
//!
//! ```text
//!   0    1        4                8                12
//!   +----+--------+----------------+----------------+--
//!   |first (unused)|   group 1     |   group 2      | ...
//!   +----+--------+----------------+----------------+--
//! ```
//!
//! The first field has one byte. The others fill groups of four bytes without a gap.

use std::num::NonZeroU32;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use dpdk_sys as sys;
use netvm_cpu::Level;

use crate::log::{c_string, reason};
use crate::{Eal, NumaNode};

/// Locked while rules are compiled: one compilation at a time.
static COMPILING: Mutex<()> = Mutex::new(());

/// Bytes of all freed ACLs. Locked while an ACL is freed, so that the number stays consistent with the heap's
/// statistics.
static FREED: Mutex<usize> = Mutex::new(0);

/// How a rule matches a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AclKind {
    /// A value and a mask.
    Masked,
    /// The lowest and the highest value.
    Range,
}

/// A field of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AclField {
    /// How rules match it.
    pub kind: AclKind,
    /// Bytes: 1, 2 or 4.
    pub bytes: u8,
}

/// One rule's match of one field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AclValue {
    /// The value of the bits that matter, or the lowest value.
    pub value: u32,
    /// The bits that matter, or the highest value.
    pub mask_or_last: u32,
}

/// Rules could not be compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AclError {
    /// The fields do not form a key.
    #[error("field {0} of an ACL key is invalid: the first has one byte, and the others fill groups of four")]
    Layout(usize),
    /// The key is longer than its array.
    #[error("an ACL key of {needed} bytes does not fit in {chosen}")]
    KeyBytes {
        /// Bytes of the fields.
        needed: usize,
        /// Bytes of the array.
        chosen: usize,
    },
    /// A rule lacks a value for a field, has one out of the field's range, or an invalid priority.
    #[error("rule {0} of an ACL is invalid: a value or its priority is out of range")]
    Rule(usize),
    /// The builder has no rules.
    #[error("an ACL needs at least one rule")]
    Empty,
    /// The compiled rules take more memory than allowed.
    #[error("{rules} compiled rules take {needed} bytes, but only {bytes} are allowed")]
    TooLarge {
        /// How many rules.
        rules: usize,
        /// Bytes that they take.
        needed: usize,
        /// Bytes allowed.
        bytes: usize,
    },
    /// DPDK has too little memory, or the rules differ too much to be compiled into one ACL.
    #[error(
        "DPDK cannot compile {rules} rules: its memory is full ({free} bytes are free), or they differ too much"
    )]
    NoMemory {
        /// How many rules.
        rules: usize,
        /// Bytes of the longest free block of the EAL's memory.
        free: usize,
    },
    /// DPDK refused for another reason.
    #[error("DPDK cannot compile {rules} rules: {}", reason(*.errno))]
    Refused {
        /// How many rules.
        rules: usize,
        /// The error number.
        errno: i32,
    },
}

/// Rules to be compiled.
#[derive(Clone, Debug)]
pub struct AclBuilder {
    fields: Vec<sys::netvm_acl_field>,
    rules: Vec<sys::netvm_acl_rule>,
    values: Vec<sys::netvm_acl_value>,
    key_bytes: usize,
}

impl AclBuilder {
    /// A builder without rules, for keys of these fields.
    ///
    /// # Errors
    /// [`AclError::Layout`] if they do not make a key.
    pub fn new(fields: &[AclField]) -> Result<Self, AclError> {
        let mut list = Vec::with_capacity(fields.len());
        let mut offset = 0_u8;
        for (index, field) in fields.iter().enumerate() {
            let first = index == 0;
            let fits = match field.bytes {
                1 => true,
                2 | 4 => !first && offset.is_multiple_of(field.bytes),
                _ => false,
            };
            if !fits || index >= sys::NETVM_ACL_MAX_FIELDS as usize || offset > u8::MAX - 4 {
                return Err(AclError::Layout(index));
            }
            let kind = match field.kind {
                AclKind::Masked => sys::NETVM_ACL_BITMASK,
                AclKind::Range => sys::NETVM_ACL_RANGE,
            };
            list.push(sys::netvm_acl_field {
                type_: kind as u8,
                size: field.bytes,
                input: offset / 4,
                offset,
            });
            offset += if first { 4 } else { field.bytes };
        }
        if list.is_empty() || !offset.is_multiple_of(4) {
            return Err(AclError::Layout(list.len()));
        }
        Ok(Self { fields: list, rules: Vec::new(), values: Vec::new(), key_bytes: usize::from(offset) })
    }

    /// Adds a rule: a value for each field, a priority (from 1; the highest wins) and the result.
    ///
    /// # Errors
    /// [`AclError::Rule`] if a value does not fit its field, or the priority is out of range.
    pub fn rule(
        &mut self,
        values: &[AclValue],
        priority: NonZeroU32,
        result: NonZeroU32,
    ) -> Result<(), AclError> {
        let error = AclError::Rule(self.rules.len());
        let priority = i32::try_from(priority.get()).map_err(|_| error)?;
        if values.len() != self.fields.len() || priority > sys::NETVM_ACL_MAX_PRIORITY as i32 {
            return Err(error);
        }
        let fits = |(value, field): (&AclValue, &sys::netvm_acl_field)| {
            let most = u32::MAX >> (32 - 8 * u32::from(field.size));
            let ordered = u32::from(field.type_) != sys::NETVM_ACL_RANGE || value.value <= value.mask_or_last;
            value.value <= most && value.mask_or_last <= most && ordered
        };
        if !values.iter().zip(&self.fields).all(fits) {
            return Err(error);
        }
        self.rules.push(sys::netvm_acl_rule { priority, result: result.get() });
        self.values.extend(values.iter().map(|value| sys::netvm_acl_value {
            value: value.value.into(),
            mask_range: value.mask_or_last.into(),
        }));
        Ok(())
    }

    /// Bytes of a key.
    #[must_use]
    pub fn key_bytes(&self) -> usize {
        self.key_bytes
    }

    /// Rules added so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Compiles the rules for keys in arrays of `N` bytes. They may take `bytes` bytes of the EAL's memory. DPDK
    /// reports the size only afterwards, so they may take more for a moment; memory that ports and pools take meanwhile
    /// counts too.
    ///
    /// One thread at a time compiles rules. Compilation also takes ordinary memory, and time: 20 to 900 ms and up to
    /// 400 MB for 1,000 rules, up to 8 s and 1.3 GB for 10,000 rules, depending on how many rules overlap in how many
    /// fields (ClassBench sets, one 2.3 GHz core).
    ///
    /// # Errors
    /// [`AclError`]; fewer rules avoid errors of size and complexity.
    pub fn build<const N: usize>(
        &self,
        _eal: Eal,
        bytes: usize,
        node: Option<NumaNode>,
    ) -> Result<Acl<N>, AclError> {
        static NEXT: AtomicU32 = AtomicU32::new(0);

        let rules = self.rules.len();
        if N < self.key_bytes {
            return Err(AclError::KeyBytes { needed: self.key_bytes, chosen: N });
        }
        if rules == 0 {
            return Err(AclError::Empty);
        }
        let refused = AclError::Refused { rules, errno: libc::EINVAL };
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        if number == 0 {
            // SAFETY: sets a level; the EAL is initialised.
            unsafe { sys::netvm_acl_quiet() };
        }
        let name = c_string(&format!("nv{number}")).map_err(|_| refused)?;
        let spec = sys::netvm_acl_spec {
            name: name.as_ptr(),
            fields: self.fields.as_ptr(),
            rules: self.rules.as_ptr(),
            values: self.values.as_ptr(),
            field_count: u32::try_from(self.fields.len()).map_err(|_| refused)?,
            rule_count: u32::try_from(rules).map_err(|_| refused)?,
            node: NumaNode::to_signed(node),
        };
        let mut context = std::ptr::null_mut();
        // One compilation at a time, so that memory allocated in the meantime belongs to this ACL.
        let _turn = COMPILING.lock().unwrap_or_else(PoisonError::into_inner);
        let before = heap_used();
        // SAFETY: the arrays have the lengths given; `rule` has added a value for each field of each rule. DPDK copies
        // them. The name is unique.
        let error = unsafe { sys::netvm_acl_create(&raw const spec, &raw mut context) };
        let Some(context) = NonNull::new(context) else {
            return Err(match -error {
                libc::ENOMEM => AclError::NoMemory { rules, free: heap().longest_free },
                errno => AclError::Refused { rules, errno },
            });
        };
        let acl = Acl::new(context, heap_used().saturating_sub(before));
        if acl.bytes > bytes {
            return Err(AclError::TooLarge { rules, needed: acl.bytes, bytes });
        }
        Ok(acl)
    }
}

/// Statistics of the EAL's heap; rules exist only after the EAL is initialised.
fn heap() -> sys::netvm_heap {
    let mut heap = sys::netvm_heap { used: 0, longest_free: 0 };
    // SAFETY: writes the structure.
    unsafe { sys::netvm_heap(&raw mut heap) };
    heap
}

/// Bytes allocated, including the bytes of freed ACLs.
fn heap_used() -> usize {
    let freed = FREED.lock().unwrap_or_else(PoisonError::into_inner);
    heap().used.saturating_add(*freed)
}

/// Compiled rules over keys in arrays of `N` bytes.
#[derive(Debug)]
pub struct Acl<const N: usize> {
    context: NonNull<sys::rte_acl_ctx>,
    algorithm: u32,
    bytes: usize,
}

// SAFETY: the context is not bound to a thread, and belongs to this value alone.
unsafe impl<const N: usize> Send for Acl<N> {}
// SAFETY: classifying only reads the context.
unsafe impl<const N: usize> Sync for Acl<N> {}

impl<const N: usize> Acl<N> {
    /// Keys that one call to DPDK classifies.
    pub const BURST: usize = sys::NETVM_ACL_BURST as usize;

    fn new(context: NonNull<sys::rte_acl_ctx>, bytes: usize) -> Self {
        let mut acl = Self { context, algorithm: 0, bytes };
        acl.use_level(Level::current());
        acl
    }

    /// Sets the level of instructions for classification, which the processor must have. The default is
    /// [`Level::current`].
    pub fn use_level(&mut self, level: Level) {
        let bits = level.vector_bits().into();
        // SAFETY: the context is alive and compiled for keys of at most N bytes.
        self.algorithm = unsafe { sys::netvm_acl_algorithm(self.context.as_ptr(), N, bits) };
    }

    /// Bytes of the EAL's memory that it takes; approximate if other memory was taken while it was compiled.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Writes for each key the result of the matching rule of highest priority, or 0 without a match; stops at the end
    /// of the shorter slice. Bursts of 32 and more are fastest.
    #[inline]
    pub fn classify(&self, keys: &[[u8; N]], results: &mut [u32]) {
        for (keys, results) in keys.chunks(Self::BURST).zip(results.chunks_mut(Self::BURST)) {
            let count = keys.len().min(results.len());
            // SAFETY: the context is alive, and compiled for keys of at most N bytes; both slices have `count`
            // elements, which is no more than a burst.
            let error = unsafe {
                sys::netvm_acl_classify(
                    self.context.as_ptr(),
                    keys.as_ptr().cast(),
                    N,
                    results.as_mut_ptr(),
                    count as u32,
                    self.algorithm,
                )
            };
            if error != 0 {
                results[..count].fill(0);
            }
        }
    }
}

impl<const N: usize> Drop for Acl<N> {
    fn drop(&mut self) {
        let mut freed = FREED.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: made in `build`; this is the only reference to it.
        unsafe { sys::rte_acl_free(self.context.as_ptr()) };
        *freed = freed.saturating_add(self.bytes);
    }
}
