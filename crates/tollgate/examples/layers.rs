//! Layers and plans: a global cap, two limits per client, a stricter one for logins, a partner with
//! a higher limit, and a shadow rule.
//!
//! `cargo run -p tollgate --example layers`
#![expect(clippy::print_stdout, reason = "an example")]

use tollgate::{Error, Limit, Limiter, MINUTE, Override, Rule, RuleSet};

fn main() -> Result<(), Error> {
    let rules = RuleSet::new([
        Rule::new("global", Limit::per_second(5_000)),
        Rule::new("per-client", [Limit::per_second(10), Limit::fixed_window(100, MINUTE)]).key(["client"]),
        Rule::new("login", Limit::LOGIN).matching("path", "/login").key(["client"]),
        Rule::new("tighter?", Limit::per_second(2)).key(["client"]).shadow(),
    ])?
    .with_overrides([
        Override::new("per-client", Limit::per_second(1_000)).matching("client", "partner-7")
    ])?;
    let limiter = Limiter::builder(rules).build()?;

    for request in [
        [("client", "alice"), ("path", "/")],
        [("client", "alice"), ("path", "/login")],
        [("client", "partner-7"), ("path", "/")],
    ] {
        let decision = limiter.check(&request)?;
        println!("{request:?}: allowed {}, {} left", decision.allowed(), decision.remaining());
        for report in decision.limits() {
            let shadow = if report.shadow { " (shadow)" } else { "" };
            println!(
                "    {:12} {:22} {} left{shadow}",
                report.rule,
                report.limit.to_string(),
                report.outcome.remaining
            );
        }
    }
    println!("{:#?}", limiter.stats().total);
    Ok(())
}
