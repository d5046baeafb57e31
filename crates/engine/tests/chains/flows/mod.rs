//! Verdicts of NFs on whole flows.

mod steering;
mod verdicts;
