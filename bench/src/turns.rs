//! Servers side by side: everyone has a turn in each round, and medians are told.

use std::fmt::Write as _;

use crate::process::Process;

pub const ROUNDS: usize = 7;

/// What a load generator saw of a server.
pub struct Turn {
    pub requests: f64,
    pub per_second: f64,
    /// Not every generator knows it.
    pub p99_ms: Option<f64>,
}

/// Who is measured, and what a turn of it is.
pub struct Contender<'a> {
    name: &'static str,
    process: &'a Process,
    turn: Box<dyn Fn() -> Turn + 'a>,
    goal: Option<f64>,
    rounds: Vec<Round>,
}

struct Round {
    per_second: f64,
    p99_ms: Option<f64>,
    cpu_us: f64,
}

impl<'a> Contender<'a> {
    pub fn new(name: &'static str, process: &'a Process, turn: impl Fn() -> Turn + 'a) -> Self {
        Self { name, process, turn: Box::new(turn), goal: None, rounds: Vec::new() }
    }

    /// What tollgate's rate is to be of its rate, at least.
    pub fn goal(self, ratio: f64) -> Self {
        Self { goal: Some(ratio), ..self }
    }

    /// The median of the rounds' own ratios.
    pub fn rate_to(&self, other: &Self) -> f64 {
        ratio(&self.rounds, &other.rounds, |round| Some(round.per_second)).expect("a rate")
    }

    fn measure(&self) -> Round {
        let before = self.process.processor_seconds();
        let Turn { requests, per_second, p99_ms } = (self.turn)();
        let used = self.process.processor_seconds() - before;
        Round { per_second, p99_ms, cpu_us: used * 1e6 / requests }
    }
}

/// Lets everyone have their turns, and says in Markdown how the first, which is tollgate, compares.
pub fn compare(contenders: &mut [Contender]) -> String {
    for round in 0..=ROUNDS {
        for contender in &mut *contenders {
            let measured = contender.measure();
            // The first is to warm up.
            if round > 0 {
                let Round { per_second, cpu_us, .. } = measured;
                eprintln!(
                    "{round}/{ROUNDS} {}: {per_second:.0} per second, {cpu_us:.2} us of a processor",
                    contender.name
                );
                contender.rounds.push(measured);
            }
        }
    }
    let [ours, ..] = &*contenders else { return String::new() };
    let knows_p99 = ours.rounds.iter().all(|round| round.p99_ms.is_some());
    let mut text = String::from(
        "| server | requests per second | processor time per request, us | tollgate's rate to its |",
    );
    text += if knows_p99 {
        " p99, ms | tollgate's p99 to its |\n|---|---|---|---|---|---|\n"
    } else {
        "\n|---|---|---|---|\n"
    };
    for contender in &*contenders {
        let of = |part: fn(&Round) -> f64| median(contender.rounds.iter().map(part).collect());
        let _ = write!(
            text,
            "| {} | {:.0} | {:.2} | {:.2}",
            contender.name,
            of(|round| round.per_second),
            of(|round| round.cpu_us),
            ours.rate_to(contender)
        );
        if let Some(goal) = contender.goal {
            let _ = write!(text, " (goal: at least {goal})");
        }
        if let Some(p99) = ratio(&ours.rounds, &contender.rounds, |round| round.p99_ms) {
            let _ = write!(text, " | {:.2} | {p99:.2}", of(|round| round.p99_ms.unwrap_or(f64::NAN)));
        }
        text += " |\n";
    }
    text
}

fn ratio(ours: &[Round], theirs: &[Round], part: fn(&Round) -> Option<f64>) -> Option<f64> {
    ours.iter()
        .zip(theirs)
        .map(|(ours, theirs)| Some(part(ours)? / part(theirs)?))
        .collect::<Option<_>>()
        .map(median)
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}
