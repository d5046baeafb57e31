// SPDX-License-Identifier: Apache-2.0
//! Summary statistics over runs.

use serde::{Deserialize, Serialize};

/// Median and spread of a case's figures.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The median; of an even number, the mean of the middle two.
    pub median: f64,
    /// The minimum.
    pub min: f64,
    /// The maximum.
    pub max: f64,
    /// The number of figures.
    pub runs: usize,
}

impl Summary {
    /// Summarises figures in any order; `None` without figures.
    pub fn of(figures: &[f64]) -> Option<Self> {
        let mut sorted = figures.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let (low, high) = (sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2]);
        Some(Self {
            median: rounded(low / 2.0 + high / 2.0),
            min: rounded(min),
            max: rounded(max),
            runs: sorted.len(),
        })
    }

    /// The ratios of the figures to a positive one.
    pub fn relative_to(self, other: f64) -> Self {
        let ratio = |figure: f64| rounded(figure / other);
        Self { median: ratio(self.median), min: ratio(self.min), max: ratio(self.max), runs: self.runs }
    }
}

/// The median of unsorted figures; 0 without figures.
pub fn median(figures: &[f64]) -> f64 {
    Summary::of(figures).map_or(0.0, |summary| summary.median)
}

/// The figure that this share of the unsorted ones does not exceed; 0 without figures.
pub fn quantile(figures: &[f64], share: f64) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    let place = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(place.saturating_sub(1)).copied().unwrap_or(0.0)
}

/// Rounds to four decimals, the most that a run can resolve.
fn rounded(figure: f64) -> f64 {
    (figure * 1e4).round() / 1e4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        let odd = Summary::of(&[5.0, 1.0, 3.0]).unwrap();
        assert_eq!(odd, Summary { median: 3.0, min: 1.0, max: 5.0, runs: 3 });
        let even = Summary::of(&[4.0, 1.0, 2.0, 10.0]).unwrap();
        assert_eq!(even, Summary { median: 3.0, min: 1.0, max: 10.0, runs: 4 });
        assert_eq!(Summary::of(&[]), None);
        assert_eq!(median(&[]), 0.0);
    }

    #[test]
    fn a_quantile_is_one_of_the_figures() {
        let figures = [4.0, 1.0, 3.0, 2.0];
        assert_eq!(
            [0.0, 0.5, 0.51, 0.99, 1.0].map(|share| quantile(&figures, share)),
            [1.0, 2.0, 3.0, 4.0, 4.0]
        );
        assert_eq!(quantile(&[], 0.5), 0.0);
    }

    #[test]
    fn ratios_keep_the_spread() {
        let ratios = Summary::of(&[2.0, 4.0, 3.0]).unwrap().relative_to(4.0);
        assert_eq!(ratios, Summary { median: 0.75, min: 0.5, max: 1.0, runs: 3 });
    }

    #[test]
    fn figures_are_rounded_to_four_decimals() {
        assert_eq!(Summary::of(&[1.0 / 3.0]).unwrap().median, 0.3333);
    }
}
