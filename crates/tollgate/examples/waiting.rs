//! Waiting for admission, in order and up to a timeout; and reserving an estimated cost, then
//! settling the actual one.
//!
//! `cargo run -p tollgate --example waiting`
#![expect(clippy::print_stdout, reason = "an example")]

use tollgate::{Clock as _, Error, Limit, Limiter, OnExpiry, Request, SECOND, SystemClock, block_on};

fn main() -> Result<(), Error> {
    let jobs = Limiter::new(Limit::per_second(5).burst(1));
    let start = SystemClock.now();
    for job in 1..=4 {
        let decision = block_on(jobs.wait("worker", SECOND))?;
        println!("job {job}: admitted {} after {:?}", decision.allowed(), SystemClock.now().since(start));
    }

    let tokens = Limiter::new(Limit::per_day(100_000));
    let estimate = Request::client("tenant-1").cost(4_000);
    let reservation = block_on(tokens.reserve(estimate, 30 * SECOND, OnExpiry::GiveBack))?;
    println!("reserved 4000 tokens, {} left", reservation.decision().remaining());
    let settlement = block_on(reservation.settle(1_234))?;
    let left = block_on(tokens.peek("tenant-1"))?.remaining();
    println!("settled 1234 tokens: {left} left, shortfall {}", settlement.shortfall);
    Ok(())
}
