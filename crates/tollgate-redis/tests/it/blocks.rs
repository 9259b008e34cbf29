//! Blocks are listed from an index beside them, which costs what they are, and is never believed.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::common::{Cluster, Redis, direct, unique};
use crate::fire::commands;
use tollgate::{
    Error, HOUR, Limit, Limiter, ManualClock, Request, Rule, RuleSet, SECOND, Store as _, Timestamp, Until,
};
use tollgate_redis::{Blocks, ClearProgress, RedisStore};
use tollgate_testkit::run;

/// The most entries of an index.
const INDEX_MAX: usize = 100_000;

/// A limiter with three rules, one of them with two limits and one with a log, and its clock.
struct Node {
    limiter: Limiter<RedisStore>,
    clock: ManualClock,
    prefix: String,
}

impl Node {
    fn new(url: &str) -> Self {
        let prefix = format!("blocks-{}", unique());
        let clock = ManualClock::at(Timestamp::from_secs(1_800_000_000));
        let rules = RuleSet::new([
            Rule::new("two", [Limit::per_hour(9), Limit::fixed_window(9, HOUR)]).key(["client"]),
            Rule::new("log", Limit::sliding_log(9, HOUR)).key(["client"]),
            Rule::new("pair", Limit::per_hour(9)).key(["client", "path"]),
            Rule::new("all", Limit::per_hour(1_000_000)),
        ]);
        let limiter = Limiter::builder(rules.unwrap())
            // Longer than a probe takes on a busy machine.
            .store(direct(url).prefix(&prefix).deadline(HOUR).connect_timeout(HOUR).build().unwrap())
            .clock(clock.clone())
            .deadline(HOUR)
            .build()
            .unwrap();
        Self { limiter, clock, prefix }
    }

    /// Blocks a client under every rule.
    fn block(&self, client: &str, until: impl Into<Until>) {
        let attributes = [("client", client), ("path", "/")];
        run(self.limiter.block(Request::new(&attributes), until)).unwrap();
    }

    fn list(&self, max: usize) -> Blocks {
        run(self.limiter.store().blocks(max, self.now())).unwrap()
    }

    /// The rules and the clients of the blocks that are listed.
    fn listed(&self) -> BTreeSet<(String, String)> {
        let Blocks { blocks, complete, now, .. } = self.list(1_000_000);
        assert!(complete && now == self.now());
        let count = blocks.len();
        let all: BTreeSet<_> = blocks.into_iter().map(|block| (block.rule, block.value)).collect();
        assert_eq!(all.len(), count, "each is listed once");
        all
    }

    fn now(&self) -> Timestamp {
        tollgate::Clock::now(&self.clock)
    }

    fn index(&self) -> String {
        format!("{}:blocks", self.prefix)
    }
}

/// Both blocks of each of these clients.
fn blocks_of<const N: usize>(clients: [&str; N]) -> BTreeSet<(String, String)> {
    let both = |client: &str| ["log", "two"].map(|rule| (rule.to_owned(), client.to_owned()));
    clients.into_iter().flat_map(both).collect()
}

/// Counted in commands that Redis runs.
#[test]
fn c5_listing_blocks_costs_what_they_are_however_many_keys_there_are() {
    let redis = Redis::start(&[]);
    let node = Node::new(&redis.url());
    (0..10).for_each(|client| node.block(&format!("client-{client}"), HOUR));
    let cost = || {
        let before = commands(&redis);
        assert_eq!(node.listed().len(), 20);
        commands(&redis) - before
    };
    let few = cost();
    let fill = "for i = 1, 20000 do redis.call('SET', ARGV[1] .. ':{other-' .. i .. '}:two:0', 'x') end";
    redis.cli(&["eval", fill, "0", &node.prefix]);
    assert_eq!(cost(), few);
    assert!(few < 50, "{few} commands");
}

#[test]
fn c5_exactly_the_blocks_in_force_are_listed_whatever_the_index_says() {
    let redis = Redis::start(&[]);
    let node = Node::new(&redis.url());
    assert!(node.listed().is_empty());
    for client in ["ann", "bob", "cid", "dan", "e,{}*%é"] {
        let _ = run(node.limiter.check_async(client)).unwrap();
        node.block(client, HOUR);
    }
    node.block("short", SECOND);
    assert_eq!(node.listed(), blocks_of(["ann", "bob", "cid", "dan", "e,{}*%é", "short"]));
    node.clock.advance(SECOND);
    assert_eq!(node.listed(), blocks_of(["ann", "bob", "cid", "dan", "e,{}*%é"]));
    // Lifted, reset, and deleted by an operator.
    node.block("bob", Duration::ZERO);
    run(node.limiter.reset(Request::new(&[("client", "cid"), ("path", "/")]))).unwrap();
    for row in ["two:0", "two:1", "log:0"] {
        redis.cli(&["del", &format!("{}:{{dan}}:{row}", node.prefix)]);
    }
    let left = blocks_of(["ann", "e,{}*%é"]);
    assert_eq!(node.listed(), left);
    assert_eq!(redis.cli(&["zcard", &node.index()]), "6", "a listing removes what it does not find");
    // A later end replaces an earlier one.
    node.block("ann", 2 * HOUR);
    let ends = |listed: Blocks| -> Vec<_> {
        let of_ann = listed.blocks.into_iter().filter(|block| block.value == "ann");
        of_ann.map(|block| block.until.since(listed.now)).collect()
    };
    assert_eq!(ends(node.list(1_000)), [2 * HOUR; 2]);
    assert_eq!(node.listed(), left);
    assert_eq!(run(node.limiter.store().clear("two")), Ok(8));
    assert!(node.listed().iter().all(|(rule, _)| rule == "log"));
    assert_eq!(node.list(1).blocks.len(), 1);
}

/// Pages are read while blocks are removed from the index.
#[test]
fn c5_many_blocks_are_listed_in_pages() {
    let redis = Redis::start(&[]);
    let node = Node::new(&redis.url());
    let names: Vec<String> = (0..450).map(|client| format!("client-{client}")).collect();
    names.iter().for_each(|client| node.block(client, HOUR));
    for client in names.iter().step_by(3) {
        redis.cli(&["del", &format!("{}:{{{client}}}:log:0", node.prefix)]);
    }
    let listed = node.listed();
    assert_eq!(listed.iter().filter(|(rule, _)| rule == "two").count(), 450);
    assert_eq!(listed.iter().filter(|(rule, _)| rule == "log").count(), 300);
    assert_eq!(node.list(123).blocks.len(), 123);
}

#[test]
fn c5_the_index_is_bounded_and_says_when_blocks_are_missing() {
    let redis = Redis::start(&[]);
    let node = Node::new(&redis.url());
    let now = node.now().as_nanos() / 1_000;
    let fill = "for i = 1, tonumber(ARGV[2]) do redis.call('ZADD', KEYS[1], ARGV[1] + i, 'entry-' .. i) end";
    // They end within the tenth of a second after the next hour.
    let ends = (now + 3_600_000_000).to_string();
    redis.cli(&["eval", fill, "1", &node.index(), &ends, &(INDEX_MAX - 3).to_string()]);
    node.block("fits", HOUR / 2);
    assert_eq!(redis.cli(&["zcard", &node.index()]), INDEX_MAX.to_string());
    node.block("does-not", 3 * HOUR);
    node.block("fits", HOUR / 4);
    assert_eq!(redis.cli(&["zcard", &node.index()]), (INDEX_MAX + 1).to_string());
    assert!(!run(node.limiter.peek("does-not")).unwrap().allowed(), "the block itself holds");
    let is_listed = |client: &str| node.list(1_000).blocks.iter().any(|block| block.value == client);
    assert!(is_listed("fits") && !is_listed("does-not"));
    // Listing removes the entries without a row, and still says that a block is missing.
    let all = node.list(usize::MAX);
    assert!(!all.complete && all.blocks.len() == 2);
    node.clock.advance(2 * HOUR);
    assert!(!node.list(1_000).complete);
    node.clock.advance(HOUR);
    assert!(node.list(1_000).complete, "the missing block has ended");
    node.block("again", HOUR);
    assert_eq!(node.listed(), blocks_of(["again"]));
    assert_eq!(redis.cli(&["zcard", &node.index()]), "3");
}

#[test]
fn c5_the_index_expires_with_its_last_block_and_lapsed_entries_are_removed() {
    let redis = Redis::start(&[]);
    let node = Node::new(&redis.url());
    let left = || redis.cli(&["pttl", &node.index()]).parse::<u128>().unwrap();
    let grace = HOUR.as_millis();
    let about = |span: Duration| grace + span.as_millis() - 30_000..=grace + span.as_millis();
    (0..40).for_each(|client| node.block(&format!("early-{client}"), HOUR));
    assert!(about(HOUR).contains(&left()), "{}", left());
    node.block("late", 9 * HOUR);
    assert!(about(9 * HOUR).contains(&left()));
    node.block("late", Duration::ZERO);
    assert!(about(HOUR).contains(&left()));
    assert_eq!(redis.cli(&["zcard", &node.index()]), "120");
    node.clock.advance(HOUR);
    node.block("one", HOUR);
    assert_eq!(redis.cli(&["zcard", &node.index()]), (120 - 64 + 3).to_string());
    node.block("two", HOUR);
    assert_eq!(redis.cli(&["zcard", &node.index()]), "6");
    node.block("one", Duration::ZERO);
    node.block("two", Duration::ZERO);
    assert_eq!(redis.cli(&["exists", &node.index()]), "0");
}

/// Global budgets, and those of several attributes, are not listed and take no room.
#[test]
fn c5_only_budgets_of_one_value_are_in_the_index() {
    let redis = Redis::start(&[]);
    let node = Node::new(&redis.url());
    node.block("{a}", HOUR);
    let names = redis.cli(&["zrange", &node.index(), "0", "-1"]);
    let names: BTreeSet<&str> = names.lines().collect();
    let expected = ["two:0", "two:1", "log:0"].map(|row| format!("{}:{{%7Ba%7D}}:{row}", node.prefix));
    assert_eq!(names, expected.iter().map(String::as_str).collect());
}

#[test]
fn no_check_touches_the_index() {
    let redis = Redis::start(&[]);
    let node = Node::new(&redis.url());
    node.block("blocked", HOUR);
    redis.cli(&["config", "resetstat"]);
    for client in ["blocked", "other"] {
        for _ in 0..3 {
            let _ = run(node.limiter.check_async(client)).unwrap();
            run(node.limiter.record(client)).unwrap();
            run(node.limiter.refund(client)).unwrap();
        }
    }
    let used = redis.cli(&["info", "commandstats"]);
    assert!(used.contains("cmdstat_get:") && !used.contains("cmdstat_z"), "{used}");
}

/// Another program has taken the name of the index.
#[test]
fn e7_an_index_that_cannot_be_written_refuses_the_block_and_nothing_is_written() {
    let redis = Redis::start(&[]);
    let node = Node::new(&redis.url());
    redis.cli(&["set", &node.index(), "hello"]);
    let Err(Error::StoreUnavailable { reason }) = run(node.limiter.block("ann", HOUR)) else {
        panic!("blocked without the index")
    };
    assert!(reason.contains(&node.index()) && reason.contains("another type"), "{reason}");
    assert_eq!(redis.cli(&["keys", &format!("{}:{{ann}}*", node.prefix)]), "");
    assert!(run(node.limiter.check_async("ann")).unwrap().allowed());
}

/// What an index has of slots that moved is still found.
#[test]
fn c5_in_a_cluster_blocks_are_listed_after_their_slots_have_moved() {
    let cluster = Cluster::start();
    let node = Node::new(&cluster.url());
    let names: Vec<String> = (0..200).map(|client| format!("client-{client}")).collect();
    for client in &names {
        run(node.limiter.block(client.as_str(), HOUR)).unwrap();
    }
    let all: BTreeSet<_> = names.iter().flat_map(|client| blocks_of([client.as_str()])).collect();
    assert_eq!(node.listed(), all);
    let masters: Vec<String> =
        cluster.nodes.iter().take(2).map(|server| server.cli(&["cluster", "myid"])).collect();
    let mut reshard = std::process::Command::new("redis-cli");
    reshard.args(["--cluster", "reshard", &format!("127.0.0.1:{}", cluster.nodes[0].port)]);
    reshard.args(["--cluster-from", &masters[0], "--cluster-to", &masters[1]]);
    reshard.args(["--cluster-slots", "700", "--cluster-yes"]);
    assert!(reshard.output().unwrap().status.success());
    assert_eq!(node.listed(), all);
    assert_eq!(node.list(7).blocks.len(), 7);
}

#[test]
fn a_rule_is_cleared_page_by_page_and_says_how_far_it_is() {
    let redis = Redis::start(&[]);
    let node = Node::new(&redis.url());
    (0..500).for_each(|client| node.block(&format!("client-{client}"), HOUR));
    let mut steps: Vec<ClearProgress> = Vec::new();
    let cleared = run(node.limiter.store().clear_with("log", |progress| steps.push(progress)));
    assert_eq!(cleared, Ok(500));
    let last = steps.last().unwrap();
    assert!(steps.len() > 10 && last.removed == 500 && last.seen >= 2_000, "{last:?}");
    assert!(steps.is_sorted_by_key(|step| (step.seen, step.removed)));
}
