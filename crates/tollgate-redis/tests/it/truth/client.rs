//! One client of a limiter, and what it holds.

use std::time::Duration;

use tollgate::{HoldId, InlineLimit, Limiter, OnExpiry, Request, Reservation};
use tollgate_testkit::run;

use super::schedules::Step;
use super::twin::Twin;

/// The client `a`. The twin store compares the answers, so nothing is returned.
pub(super) struct Client<'a> {
    limiter: &'a Limiter<Twin>,
    inline: &'a [InlineLimit],
    reservations: Vec<Reservation<Twin>>,
    slots: Vec<HoldId>,
    /// Reservations that hold nothing, settled or not.
    nothing: Vec<HoldId>,
}

impl<'a> Client<'a> {
    pub(super) const fn new(limiter: &'a Limiter<Twin>, inline: &'a [InlineLimit]) -> Self {
        Self { limiter, inline, reservations: Vec::new(), slots: Vec::new(), nothing: Vec::new() }
    }

    /// Takes a step that changes neither the rules nor the clock.
    pub(super) fn take(&mut self, step: Step) {
        let limiter = self.limiter;
        match step {
            Step::Check(cost) => drop(run(limiter.check_async(request(cost)))),
            Step::Refuse(cost) => drop(run(limiter.refuse_all(&[request(cost)]))),
            Step::Peek(cost) => drop(run(limiter.peek(request(cost)))),
            Step::Refund(cost) => drop(run(limiter.refund(request(cost)))),
            Step::Penalise(cost) => drop(run(limiter.penalise(request(cost)))),
            Step::Record(cost) => drop(run(limiter.record(request(cost)))),
            Step::Block(span) => drop(run(limiter.block("a", span))),
            Step::Reset => drop(run(limiter.reset("a"))),
            Step::Overridden(cost) => {
                let attributes = [("client", "a"), ("path", "/x")];
                drop(run(limiter.check_async(Request::new(&attributes).cost(cost))));
            }
            Step::Credits(cost) => drop(run(limiter.check_async(request(cost).only("credits")))),
            Step::BlockCredits(span) => drop(run(limiter.block(request(1).only("credits"), span))),
            Step::Inline(cost, index) => {
                drop(run(limiter.check_async(request(cost).under("inline", &self.inline[index]))));
            }
            held => self.take_held(held),
        }
    }

    /// Takes a step with a reservation or a slot.
    fn take_held(&mut self, step: Step) {
        let limiter = self.limiter;
        match step {
            Step::Reserve(cost, ttl, on_expiry) => {
                self.reservations.extend(run(limiter.reserve(request(cost), ttl, on_expiry)));
            }
            Step::Settle(cost) if !self.reservations.is_empty() => {
                drop(run(self.reservations.remove(0).settle(cost)));
            }
            Step::Acquire(cost, ttl) => {
                self.slots.extend(run(limiter.acquire(request(cost), ttl)).unwrap().detach());
            }
            Step::Release if !self.slots.is_empty() => {
                drop(run(limiter.release(self.slots.remove(0), "a")));
            }
            Step::Renew(ttl) => self.renew(ttl),
            Step::ReserveNothing(ttl) => {
                let reserved = run(limiter.reserve(request(0), ttl, OnExpiry::Keep)).unwrap();
                self.nothing.extend(reserved.detach());
            }
            Step::SettleNothing(cost, index) => {
                if let Some(hold) = self.nothing.iter().rev().nth(index) {
                    drop(run(limiter.settle(*hold, request(cost))));
                }
            }
            Step::RenewNothing(ttl, index) => {
                if let Some(hold) = self.nothing.iter().rev().nth(index) {
                    drop(run(limiter.renew(*hold, request(1), ttl)));
                }
            }
            _ => {}
        }
    }

    /// Renews the oldest slot and the oldest open reservation.
    fn renew(&self, ttl: Duration) {
        if let Some(slot) = self.slots.first() {
            drop(run(self.limiter.renew(*slot, "a", ttl)));
        }
        if let Some(reservation) = self.reservations.first() {
            drop(run(reservation.renew(ttl)));
        }
    }
}

impl Drop for Client<'_> {
    fn drop(&mut self) {
        for reservation in self.reservations.drain(..) {
            reservation.detach();
        }
    }
}

fn request(cost: u64) -> Request<'static> {
    Request::client("a").cost(cost)
}
