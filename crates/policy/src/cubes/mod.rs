// SPDX-License-Identifier: Apache-2.0
//! Cubes: the input of classifiers, and how matches are lowered to them.

mod cube;
mod lower;
mod simplify;

pub use cube::{Cube, Family, Fields};
pub use lower::{MAX_CUBES, TooManyCubes};
