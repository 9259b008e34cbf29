//! A chat under a token budget, without a server: the budget is in a directory, and survives a
//! crash. For several processes, replace `DiskStore` by `RedisStore`.
//!
//! ```sh
//! cargo run -p llm-chat -- stream alice 600 400    # reserves 600 tokens, streams 400, settles 400
//! cargo run -p llm-chat -- call alice 250          # asks, calls, records the 250 tokens it used
//! ```
//!
//! Exit code 0: answered. 1: over budget.
#![expect(clippy::print_stdout, reason = "an example")]

use std::process::ExitCode;
use std::time::Duration;

use tokio::time::{Interval, interval};
use tollgate::{Decision, Limiter, OnExpiry, Request, RuleSet};
use tollgate_disk::{DiskStore, Durability};

/// How long a stream is reserved for. Short, so that this demonstration renews; 30 to 60 seconds
/// suit production.
const TTL: Duration = Duration::from_secs(3);

type Budgets = Limiter<DiskStore>;
type Failure = Box<dyn std::error::Error>;

/// Each client has 10 000 tokens an hour, and can owe 5 000 more.
fn open() -> Result<Budgets, Failure> {
    let directory = std::env::var("BUDGETS").unwrap_or_else(|_| "budgets".into());
    // An answer waits until it is on the disk, so that a crash forgets no reservation.
    let store = DiskStore::builder(directory).durability(Durability::Strict).open()?;
    let rules = RuleSet::per_client("10_000/hour fixed debt 5_000".parse()?);
    Ok(Limiter::builder(rules).store(store).build()?)
}

/// A stand-in for a language model: a hundred tokens a second.
struct Model {
    tokens: u64,
    pace: Interval,
}

impl Model {
    fn new(tokens: u64) -> Self {
        Self { tokens, pace: interval(Duration::from_millis(10)) }
    }

    /// The next token. Loses none if it is cancelled.
    async fn next_token(&mut self) -> Option<String> {
        let left = self.tokens.checked_sub(1)?;
        self.pace.tick().await;
        self.tokens = left;
        Some(format!("token{left} "))
    }
}

/// Answers as the model streams. The budget pays what the stream used.
async fn stream(budgets: &Budgets, client: &str, estimate: u64, tokens: u64) -> Result<bool, Failure> {
    // Dropped or killed, the stream has used its estimate.
    let reservation = budgets.reserve(Request::client(client).cost(estimate), TTL, OnExpiry::Keep).await?;
    if !reservation.decision().allowed() {
        return Ok(over_budget(reservation.decision()));
    }
    println!("reserved {estimate}, {} left", reservation.decision().remaining());
    let (mut model, mut used, mut renewal) = (Model::new(tokens), 0, interval(TTL / 3));
    loop {
        tokio::select! {
            token = model.next_token() => match token {
                Some(_token) => used += 1, // Send it on to the caller here.
                None => break,
            },
            _ = renewal.tick() => reservation.renew(TTL).await?,
        }
    }
    let settled = reservation.settle(used).await?;
    println!("used {used}, {} beyond the debt", settled.shortfall);
    Ok(true)
}

/// Calls a model that says afterwards what it used, as an embedding does.
async fn call(budgets: &Budgets, client: &str, tokens: u64) -> Result<bool, Failure> {
    let asked = budgets.peek(client).await?;
    if !asked.allowed() {
        return Ok(over_budget(&asked));
    }
    let (mut model, mut used) = (Model::new(tokens), 0);
    while model.next_token().await.is_some() {
        used += 1;
    }
    let recorded = budgets.record(Request::client(client).cost(used)).await?;
    println!("used {used}, {} left, {} owed", recorded.decision().remaining(), recorded.decision().owed());
    Ok(true)
}

fn over_budget(denied: &Decision) -> bool {
    let seconds = denied.retry_after().map_or(0, |wait| wait.as_secs_f64().ceil() as u64);
    println!("over budget: {} left, {} owed, retry in {seconds} s", denied.remaining(), denied.owed());
    false
}

#[tokio::main]
async fn main() -> Result<ExitCode, Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let answered = match *arguments.as_slice() {
        ["stream", client, estimate, tokens] => {
            stream(&open()?, client, estimate.parse()?, tokens.parse()?).await?
        }
        ["call", client, tokens] => call(&open()?, client, tokens.parse()?).await?,
        _ => return Err("usage: chat stream CLIENT ESTIMATE TOKENS, or chat call CLIENT TOKENS".into()),
    };
    Ok(if answered { ExitCode::SUCCESS } else { ExitCode::from(1) })
}
