//! A limit per client, and a check, in two lines.
//!
//! `cargo run -p tollgate --example basic`
#![expect(clippy::print_stdout, reason = "an example")]

use tollgate::{Error, Limit, Limiter};

fn main() -> Result<(), Error> {
    let limiter = Limiter::new(Limit::per_second(3));
    for attempt in 1..=5 {
        let decision = limiter.check("alice")?;
        match decision.retry_after() {
            _ if decision.allowed() => println!("{attempt}: allowed, {} left", decision.remaining()),
            Some(wait) => println!("{attempt}: denied, retry after {wait:?}"),
            None => println!("{attempt}: denied, it never fits"),
        }
    }
    Ok(())
}
