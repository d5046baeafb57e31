// SPDX-License-Identifier: Apache-2.0
//! The numbers of the counters that netlib keeps: those that the table of `netvm-counters` lists, and those of which
//! users see only rates, or the values of one thread.

/// How many of the latter there are.
const FURTHER: usize = 4;

macro_rules! nf_counter {
    (
        {}
        table $about:tt
        netlib { $({
            $(#[$json:meta])*
            $field:ident: $type:ty, $unit:ident, $text:literal;
            netlib $variant:ident = $index:literal;
            $($how:tt)*
        })* }
        counted $counted:tt
        derived $derived:tt
    ) => {
        /// Counters that netlib keeps for every thread, by their index in [`CounterBlock`](super::CounterBlock).
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub enum NfCounter {
            $(#[doc = $text] $variant = $index,)*
            /// Bursts received.
            Bursts = 5,
            /// Cycles spent on bursts, the NF's own work included.
            Cycles = 6,
            /// The part of these cycles that the NF's own code took.
            NfCycles = 7,
            /// How often the thread slept.
            Sleeps = 9,
        }

        impl NfCounter {
            /// Number of these counters.
            pub const COUNT: usize = [$($index),*].len() + FURTHER;
        }

        $(const _: () = assert!($index < NfCounter::COUNT, "the numbers have no gaps");)*
    };
}

netvm_counters::nf! { nf_counter! {} }
