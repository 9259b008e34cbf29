//! The smallest size that denies at most so many requests, found by trying a few in each pass.

use std::time::Duration;

use super::Shape;
use crate::simulate::candidate::Candidate;
use crate::simulate::replay::Consumer;
use crate::simulate::steps::Steps;

/// Sizes that are tried in one pass.
const TRIED: u64 = 6;

/// Counts what a size denies.
#[derive(Debug)]
pub(crate) struct DenialCount {
    candidate: Candidate,
    size: u64,
    denied: u64,
}

impl Consumer for DenialCount {
    fn take(&mut self, steps: &Steps) {
        let Self { candidate, denied, .. } = self;
        candidate.decide(
            steps,
            |_| true,
            |_, decision| {
                *denied += u64::from(decision.is_some_and(|decision| !decision.allowed()));
            },
        );
    }
}

/// Sizes between which the wanted one lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bracket {
    pub(crate) shape: Shape,
    /// Denies too much.
    too_small: u64,
    /// Denies little enough.
    pub(crate) fits: u64,
}

impl Bracket {
    /// All sizes up to one that denies nothing.
    pub(crate) const fn up_to(shape: Shape, fits: u64) -> Self {
        Self { shape, too_small: 0, fits }
    }

    /// Whether the size is found, to one percent.
    pub(crate) const fn is_narrow(&self) -> bool {
        self.fits - self.too_small <= 1 + self.fits / 100
    }

    /// The sizes to try next, at equal ratios: a limit of 10 or 11 differs as much as one of 100 or
    /// 110.
    fn sizes(&self) -> Vec<u64> {
        let (low, high) = (self.too_small.max(1), self.fits);
        let size = |step: u32| {
            let share = f64::from(step) / f64::from(u32::try_from(TRIED).unwrap_or(1) + 1);
            rounded(float(low) * (float(high) / float(low)).powf(share))
        };
        let mut sizes: Vec<u64> = (0..=u32::try_from(TRIED).unwrap_or(1)).map(size).collect();
        sizes.retain(|size| self.too_small < *size && *size < self.fits);
        sizes.dedup();
        sizes
    }

    pub(crate) fn trials(&self, period: Duration) -> Result<Vec<DenialCount>, String> {
        let trial = |size| {
            let candidate = Candidate::of_limit(self.shape.limit(size, period)?)?;
            Ok(DenialCount { candidate, size, denied: 0 })
        };
        self.sizes().into_iter().map(trial).collect()
    }

    /// Narrows the bracket by what its trials denied.
    pub(crate) fn narrow(&mut self, trials: &[DenialCount], at_most: u64) {
        for trial in trials {
            if trial.denied <= at_most {
                self.fits = self.fits.min(trial.size);
            }
        }
        let smaller = trials.iter().map(|trial| trial.size).filter(|size| *size < self.fits);
        self.too_small = smaller.max().unwrap_or(self.too_small).max(self.too_small);
    }
}

#[expect(clippy::as_conversions, clippy::cast_precision_loss, reason = "where to try next, not a decision")]
const fn float(size: u64) -> f64 {
    size as f64
}

#[expect(
    clippy::as_conversions,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "where to try next, not a decision"
)]
const fn rounded(size: f64) -> u64 {
    size.round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_size_that_fits_is_found_in_few_passes() {
        for (wanted, largest) in [(1, 1), (1, 9_000), (137, 150), (777, 5_000), (8_999, 9_000)] {
            let mut bracket = Bracket::up_to(Shape::FixedWindow, largest);
            let mut passes = 0;
            while !bracket.is_narrow() {
                let mut trials = bracket.trials(Duration::from_secs(60)).unwrap();
                for trial in &mut trials {
                    trial.denied = u64::from(trial.size < wanted);
                }
                bracket.narrow(&trials, 0);
                passes += 1;
            }
            assert!(
                bracket.fits >= wanted && bracket.fits <= wanted + wanted / 100 + 1,
                "{wanted}: {bracket:?}"
            );
            assert!(passes <= 6, "{wanted}: {passes}");
        }
    }
}
