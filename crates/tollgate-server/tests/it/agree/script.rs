//! The rules and the requests of the comparison.

use std::time::Duration;

/// Every algorithm, layers, two limits at once, a cost, a match, an overflow and a shadow rule.
pub(super) const RULES: &str = r#"
    [[rule]]
    name = "global"
    limit = "60/60s fixed"
    [[rule]]
    name = "per-client"
    key = ["client"]
    limit = ["5/s burst 8", "20/30s sliding"]
    [[rule]]
    name = "login"
    match = { path = "/login*" }
    key = ["client"]
    limit = "3/10s log"
    cost = 2
    [[rule]]
    name = "deep"
    match = { client = "c2" }
    limit = "4 refill 1 every 100ms reserve 6 refill 1/s"
    [[rule]]
    name = "plan"
    match = { client = "c3" }
    key = ["client"]
    limit = "3/20s fixed"
    overflow = "credits"
    [[rule]]
    name = "credits"
    key = ["client"]
    limit = "4/min"
    [[rule]]
    name = "watch"
    key = ["client"]
    limit = "2/min"
    shadow = true
"#;

/// A request.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) client: Option<String>,
    pub(super) path: Option<&'static str>,
    pub(super) cost: u64,
}

/// The time that passes before a group of requests, and the group.
pub(super) type Script = Vec<(Duration, Vec<Step>)>;

impl Step {
    pub(super) fn attributes(&self) -> Vec<(&str, &str)> {
        let client = self.client.as_deref().map(|client| ("client", client));
        client.into_iter().chain(self.path.map(|path| ("path", path))).collect()
    }
}

/// Deterministic pseudo-random numbers.
pub(super) struct Dice(pub(super) u64);

impl Dice {
    pub(super) fn below(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

pub(super) fn script(seed: u64) -> Script {
    let mut dice = Dice(seed);
    let step = |dice: &mut Dice| {
        let client = (dice.below(12) > 0).then(|| format!("c{}", dice.below(4)));
        let path = [None, None, Some("/login/now"), Some("/else")][usize::try_from(dice.below(4)).unwrap()];
        // A command without any attribute is an error.
        let path = path.or(client.is_none().then_some("/else"));
        Step { client, path, cost: [1, 1, 1, 0, 2, 7][usize::try_from(dice.below(6)).unwrap()] }
    };
    let spans = [0, 1, 1_000_000, 99_999_999, 100_000_000, 333_333_333, 1_000_000_000, 20_000_000_000];
    let group = |dice: &mut Dice| {
        let span = Duration::from_nanos(spans[usize::try_from(dice.below(8)).unwrap()]);
        let steps = (0..1 + dice.below(6)).map(|_| step(dice)).collect();
        (span, steps)
    };
    (0..60).map(|_| group(&mut dice)).collect()
}
