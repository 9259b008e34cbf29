//! The most that each client ever has in use: the tightest limit that never denies it.

use std::time::Duration;

use tollgate::Limit;

use super::{CurvePoint, Shape};
use crate::simulate::candidate::Candidate;
use crate::simulate::replay::Consumer;
use crate::simulate::report::count;
use crate::simulate::steps::Steps;
use crate::simulate::traffic::{NO_CLIENT, index};

/// Measures the demand of every client under a limit that is far too large.
#[derive(Debug)]
pub(crate) struct Demand {
    pub(crate) shape: Shape,
    candidate: Candidate,
    /// The whole limit.
    capacity: u64,
    /// The part of the capacity that comes before the size: a reserve's sustained bucket.
    before: u64,
    peaks: Vec<u64>,
}

/// A demand above every size.
const UNBOUNDED: u64 = u64::MAX;

impl Demand {
    pub(crate) fn new(shape: Shape, period: Duration) -> Result<Self, String> {
        let limit = shape.limit(shape.size_max(period), period)?;
        let before = if let Shape::Reserve { per_period, .. } = shape { per_period } else { 0 };
        let candidate = Candidate::of_limit(limit)?;
        Ok(Self { shape, candidate, capacity: limit.capacity(), before, peaks: Vec::new() })
    }

    /// The demands of all clients.
    pub(crate) fn into_peaks(self) -> Peaks {
        let mut peaks = self.peaks;
        peaks.sort_unstable_by(|one, other| other.cmp(one));
        Peaks(peaks)
    }
}

impl Consumer for Demand {
    fn take(&mut self, steps: &Steps) {
        let Self { candidate, capacity, before, peaks, .. } = self;
        candidate.decide(
            steps,
            |step| step.client != NO_CLIENT,
            |at, decision| {
                let Some((step, decision)) = steps.steps.get(at).zip(decision) else { return };
                let client = index(step.client);
                if client >= peaks.len() {
                    peaks.resize(client + 1, 0);
                }
                let used = match decision.allowed() {
                    // A reserve is drawn on only once the bucket before it is empty.
                    true => capacity.saturating_sub(decision.remaining()).saturating_sub(*before),
                    false => UNBOUNDED,
                };
                if let Some(peak) = peaks.get_mut(client) {
                    *peak = used.max(*peak);
                }
            },
        );
    }
}

/// The demands of all clients, the largest first.
#[derive(Debug)]
pub(crate) struct Peaks(Vec<u64>);

impl Peaks {
    pub(crate) fn clients(&self) -> u64 {
        count(self.0.len())
    }

    /// The largest demand that is bounded.
    pub(crate) fn largest(&self) -> Option<u64> {
        self.0.first().copied().filter(|peak| *peak != UNBOUNDED)
    }

    /// The smallest size that denies something to at most `clients`; `None` if every size denies
    /// something to more.
    pub(crate) fn size_touching(&self, clients: u64) -> Option<u64> {
        let next = usize::try_from(clients).ok().and_then(|clients| self.0.get(clients));
        Some(next.copied().unwrap_or(1).max(1)).filter(|size| *size != UNBOUNDED)
    }

    /// The clients that a size denies something.
    fn touched(&self, size: u64) -> u64 {
        count(self.0.partition_point(|peak| *peak > size))
    }

    /// The trade-off between the size and the clients touched, from the largest size down.
    pub(crate) fn curve(&self, limit: impl Fn(u64) -> Result<Limit, String>) -> Vec<CurvePoint> {
        let mut points: Vec<CurvePoint> = Vec::new();
        let steps = std::iter::successors(Some(1_u64), |step| step.checked_mul(10));
        let touched = std::iter::once(0).chain(steps.flat_map(|step| [step, step * 2, step * 5]));
        for clients in touched.take_while(|clients| *clients < self.clients()) {
            let Some(size) = self.size_touching(clients) else { continue };
            if points.last().is_some_and(|point| point.size == size) {
                continue;
            }
            let Ok(limit) = limit(size) else { continue };
            points.push(CurvePoint { size, limit: limit.to_string(), clients_touched: self.touched(size) });
        }
        points
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_is_the_smallest_that_touches_so_few() {
        let peaks = Peaks(vec![UNBOUNDED, 90, 50, 50, 7, 1, 0]);
        let sizes = (0..7).map(|clients| peaks.size_touching(clients)).collect::<Vec<_>>();
        assert_eq!(sizes, [None, Some(90), Some(50), Some(50), Some(7), Some(1), Some(1)]);
        assert_eq!((peaks.touched(90), peaks.touched(50), peaks.touched(49), peaks.touched(1)), (1, 2, 4, 5));
        let curve = peaks.curve(|size| Ok(Limit::per_minute(size)));
        let points: Vec<(u64, u64)> = curve.iter().map(|point| (point.size, point.clients_touched)).collect();
        assert_eq!(points, [(90, 1), (50, 2), (1, 5)]);
    }
}
