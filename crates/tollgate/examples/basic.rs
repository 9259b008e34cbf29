//! Two lines: a limit for each client, and a question.
//!
//! `cargo run -p tollgate --example basic`
#![expect(clippy::print_stdout, reason = "an example")]

use tollgate::{Error, Limit, Limiter};

fn main() -> Result<(), Error> {
    let limiter = Limiter::new(Limit::per_second(3));
    for attempt in 1..=5 {
        let decision = limiter.check("alice")?;
        match decision.retry_after() {
            _ if decision.allowed() => println!("{attempt}: go ahead, {} left", decision.remaining()),
            Some(wait) => println!("{attempt}: come back in {wait:?}"),
            None => println!("{attempt}: that never fits"),
        }
    }
    Ok(())
}
