//! `cargo xtask redis-campaign`: everyday troubles of a real Redis, two servers, and 24 clients
//! under small limits, who count every answer. Run by hand: it takes ten minutes.

use std::time::{Duration, Instant};

use crate::node;
use crate::{in_workspace, install_unless};

mod cases;
mod load;
mod proxy;
mod servers;
mod stage;

use cases::{Case, Trouble, wait};
use load::{Answer, Client, Load, Seen};
use stage::Stage;

/// Before a trouble begins: every client has begun.
const WARM_UP: Duration = Duration::from_secs(6);

/// So long without a degraded answer is a recovery.
const PERIOD: Duration = Duration::from_millis(500);

/// Runs the cases whose names contain `part`, on this program or the one that it builds.
pub(crate) fn run(part: &str, binary: Option<&str>) -> Result<(), String> {
    install_unless(&["redis-server", "--version"], "redis-server")?;
    let binary = match binary {
        Some(binary) => binary.to_owned(),
        None => {
            node::build()?;
            in_workspace("")
                .get_current_dir()
                .ok_or("no workspace")?
                .join("target/dist/tollgate")
                .display()
                .to_string()
        }
    };
    eprintln!("{HEAD}");
    for case in cases::all().into_iter().filter(|case| case.name.contains(part)) {
        match measure(&binary, &case) {
            Ok(row) => eprintln!("{}", row.text(&case)),
            Err(error) => {
                let error = error.lines().next_back().unwrap_or_default();
                eprintln!("| {} | failed: {error} | | | | |", case.name);
            }
        }
    }
    Ok(())
}

const HEAD: &str = "\
| case | admitted beyond | degraded | slowest answer | recovery | breaker opened / closed |
|---|---|---|---|---|---|";

/// What the clients of a case saw.
struct Row {
    admitted: usize,
    beyond: usize,
    asked: usize,
    degraded: usize,
    unanswered: usize,
    slowest: Duration,
    /// From the end of the trouble to a period without it. `None` of a trouble that lasts.
    recovery: Option<Duration>,
    /// Whether answers were degraded until the end.
    is_over: bool,
    transitions: [usize; 2],
}

#[expect(clippy::disallowed_methods, reason = "the time is what is measured")]
fn measure(binary: &str, case: &Case) -> Result<Row, String> {
    let mut stage = Stage::start(binary, case.topology, case.deadline)?;
    (case.prepare)(&mut stage)?;
    let addresses: Vec<String> = stage.servers.iter().map(|server| server.http.clone()).collect();
    let load = Load::start(&addresses);
    wait(WARM_UP);
    let before = stage.transitions();
    let began = Instant::now();
    let mut ended = None;
    if let Trouble::Passing(trouble) = &case.trouble {
        trouble(&mut stage)?;
        ended = Some(Instant::now());
    }
    wait(case.topology.afterwards());
    let clients = load.end()?;
    let after = stage.transitions();
    let transitions = [after[0] - before[0], after[1] - before[1]];
    Ok(Row::new(&clients, began, ended, transitions))
}

impl Row {
    fn new(clients: &[Client], began: Instant, ended: Option<Instant>, transitions: [usize; 2]) -> Self {
        let all = clients.iter().flat_map(|client| &client.seen);
        let seen: Vec<Seen> = all.filter(|seen| seen.received >= began).copied().collect();
        let is_troubled = |seen: &&Seen| matches!(seen.answer, Answer::Degraded | Answer::None);
        let mut troubled: Vec<Instant> = seen.iter().filter(is_troubled).map(|seen| seen.received).collect();
        troubled.sort();
        let last = seen.iter().map(|seen| seen.received).max().unwrap_or(began);
        let calm_at = ended.map(|ended| calm_at(&troubled, ended));
        Self {
            admitted: count(&seen, Answer::Admitted),
            beyond: clients.iter().map(Client::admitted_beyond).sum(),
            asked: seen.len(),
            degraded: count(&seen, Answer::Degraded),
            unanswered: count(&seen, Answer::None),
            slowest: seen.iter().map(|seen| seen.received - seen.sent).max().unwrap_or_default(),
            recovery: calm_at.zip(ended).map(|(calm_at, ended)| calm_at - ended),
            is_over: calm_at.is_none_or(|calm_at| last.saturating_duration_since(calm_at) >= PERIOD),
            transitions,
        }
    }

    #[expect(clippy::cast_precision_loss, clippy::as_conversions, reason = "a figure to read")]
    fn text(&self, case: &Case) -> String {
        let share = 100.0 * self.degraded as f64 / self.asked.max(1) as f64;
        let unanswered = match self.unanswered {
            0 => String::new(),
            count => format!(", {count} without an answer"),
        };
        let recovery = match self.recovery {
            None => "—".to_owned(),
            Some(_) if !self.is_over => format!("not within {} s", case.topology.afterwards().as_secs()),
            Some(Duration::ZERO) => "at once".into(),
            Some(recovery) => format!("{} ms", recovery.as_millis()),
        };
        let [opened, closed] = self.transitions;
        format!(
            "| {} | {} of {} | {share:.1} %{unanswered} | {} ms | {recovery} | {opened} / {closed} |",
            case.name,
            self.beyond,
            self.admitted,
            self.slowest.as_millis()
        )
    }
}

fn count(seen: &[Seen], answer: Answer) -> usize {
    seen.iter().filter(|seen| seen.answer == answer).count()
}

/// When the first [`PERIOD`] without a degraded answer begins, once a trouble is over.
fn calm_at(troubled: &[Instant], ended: Instant) -> Instant {
    let mut calm_at = ended;
    for at in troubled.iter().filter(|at| **at >= ended) {
        if *at - calm_at >= PERIOD {
            break;
        }
        calm_at = *at;
    }
    calm_at
}
