// SPDX-License-Identifier: Apache-2.0
//! Verdicts of NFs on whole flows.

mod steering;
mod verdicts;
