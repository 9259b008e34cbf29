//! The rules and the requests of the comparison.

use std::time::Duration;

use tollgate_testkit::Random;

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

pub(super) fn script(seed: u64) -> Script {
    let mut random = Random(seed);
    let step = |random: &mut Random| {
        let client = (random.below(12) > 0).then(|| format!("c{}", random.below(4)));
        let paths = [None, None, Some("/login/now"), Some("//%6Cogin;x/now/"), Some("/else")];
        let path = paths[usize::try_from(random.below(5)).unwrap()];
        // A command without any attribute is an error.
        let path = path.or(client.is_none().then_some("/else"));
        Step { client, path, cost: [1, 1, 1, 0, 2, 7][usize::try_from(random.below(6)).unwrap()] }
    };
    let spans = [0, 1, 1_000_000, 99_999_999, 100_000_000, 333_333_333, 1_000_000_000, 20_000_000_000];
    let group = |random: &mut Random| {
        let span = Duration::from_nanos(spans[usize::try_from(random.below(8)).unwrap()]);
        let steps = (0..1 + random.below(6)).map(|_| step(random)).collect();
        (span, steps)
    };
    (0..60).map(|_| group(&mut random)).collect()
}
