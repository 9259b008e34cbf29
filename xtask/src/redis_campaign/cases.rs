//! The troubles, each with its begin and its end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::servers::{Redis, until};
use super::stage::{Server, Stage, Store, Topology};

/// What happens, and on what.
pub(super) struct Case {
    pub(super) name: String,
    pub(super) topology: Topology,
    pub(super) deadline: Duration,
    /// Prepares what the clients are not to see.
    pub(super) prepare: fn(&mut Stage) -> Result<(), String>,
    pub(super) trouble: Trouble,
}

pub(super) enum Trouble {
    /// Returns when the trouble is over.
    Passing(Box<Spell>),
    /// How it is all the time.
    Lasting,
}

/// Makes a trouble, and ends it.
type Spell = dyn Fn(&mut Stage) -> Result<(), String>;

/// The deadline of checks unless it is set.
const DEADLINE: Duration = Duration::from_millis(50);

/// How long a trouble lasts that only the campaign ends.
const A_WHILE: Duration = Duration::from_secs(2);

/// A narrow network, in bytes a second.
const NARROW: u64 = 155_000;

fn case(
    name: &str,
    topology: Topology,
    trouble: impl Fn(&mut Stage) -> Result<(), String> + 'static,
) -> Case {
    Case {
        name: name.into(),
        topology,
        deadline: DEADLINE,
        prepare: |_| Ok(()),
        trouble: Trouble::Passing(Box::new(trouble)),
    }
}

pub(super) fn all() -> Vec<Case> {
    let mut cases = vec![Case { trouble: Trouble::Lasting, ..case("calm", Topology::Single, |_| Ok(())) }];
    cases.extend(of_redis());
    cases.extend(of_operators());
    cases.extend(of_the_network());
    cases.extend(of_several_servers());
    cases
}

/// Redis itself is slow, or away.
fn of_redis() -> Vec<Case> {
    vec![
        paused("Redis paused for 30 ms", Duration::from_millis(30)),
        paused("Redis paused for 500 ms", Duration::from_millis(500)),
        paused("Redis paused for 3 s", Duration::from_secs(3)),
        case("another client's script of 300 ms, three times", Topology::Single, |stage| {
            let redis = stage.redis()?;
            for _ in 0..3 {
                redis.cli(&["eval", SLOW, "0"]);
                wait(Duration::from_millis(200));
            }
            Ok(())
        }),
        case("restart with an append-only file", Topology::Durable, |stage| stage.redis()?.restart()),
        case("out of memory", Topology::Single, |stage| {
            let redis = stage.redis()?;
            redis.cli(&["config", "set", "maxmemory", "1mb"]);
            wait(A_WHILE);
            redis.cli(&["config", "set", "maxmemory", "0"]);
            Ok(())
        }),
        case("evictions under allkeys-lru", Topology::Single, evict),
        case("FLUSHALL", Topology::Single, |stage| {
            stage.redis()?.cli(&["flushall"]);
            Ok(())
        }),
    ]
}

fn paused(name: &str, span: Duration) -> Case {
    case(name, Topology::Single, move |stage| {
        let redis = stage.redis()?;
        redis.signal("-STOP");
        wait(span);
        redis.signal("-CONT");
        Ok(())
    })
}

/// Runs for 300 ms.
const SLOW: &str = "local began = redis.call('TIME') local now = began repeat now = redis.call('TIME') \
                    until (now[1] - began[1]) * 1000000 + now[2] - began[2] > 300000";

/// Another program writes more than there is room for.
fn evict(stage: &mut Stage) -> Result<(), String> {
    let redis = stage.redis()?;
    let used = redis.cli(&["info", "memory"]);
    let used = used.lines().find_map(|line| line.strip_prefix("used_memory:")?.trim().parse::<u64>().ok());
    let room = used.ok_or("INFO has no used_memory")? + 200_000;
    redis.cli(&["config", "set", "maxmemory-policy", "allkeys-lru"]);
    redis.cli(&["config", "set", "maxmemory", &room.to_string()]);
    const FILL: &str =
        "for i = 1, 2000 do redis.call('SET', 'other-' .. math.random(1e9), string.rep('x', 100)) end";
    for _ in 0..20 {
        redis.cli(&["eval", FILL, "0"]);
        wait(Duration::from_millis(100));
    }
    redis.cli(&["config", "set", "maxmemory", "0"]);
    redis.cli(&["config", "set", "maxmemory-policy", "noeviction"]);
    Ok(())
}

/// What operators do.
fn of_operators() -> Vec<Case> {
    vec![
        case("CLIENT KILL of every connection, ten times", Topology::Single, |stage| {
            let redis = stage.redis()?;
            for _ in 0..10 {
                redis.cli(&["client", "kill", "type", "normal"]);
                wait(Duration::from_millis(200));
            }
            Ok(())
        }),
        case("password rotated, and back after 2 s", Topology::Single, |stage| {
            let redis = stage.redis()?;
            redis.cli(&["config", "set", "requirepass", "another"]);
            redis.cli(&["-a", "another", "client", "kill", "type", "normal"]);
            wait(A_WHILE);
            redis.cli(&["-a", "another", "config", "set", "requirepass", ""]);
            Ok(())
        }),
        case("+evalsha revoked for 2 s", Topology::Single, |stage| {
            let redis = stage.redis()?;
            redis.cli(&["acl", "setuser", "default", "-evalsha"]);
            wait(A_WHILE);
            redis.cli(&["acl", "setuser", "default", "+evalsha"]);
            Ok(())
        }),
        administered("1 000 blocks listed by four at once, among 200 000 keys", |stage| {
            administer(&stage.servers[0], 4, "GET", "/v1/blocks?count=1000")
        }),
        administered("a rule reset among 200 000 keys", |stage| {
            administer(&stage.servers[0], 1, "DELETE", "/v1/rules/blocked/state")
        }),
    ]
}

fn administered(name: &str, trouble: fn(&mut Stage) -> Result<(), String>) -> Case {
    Case { prepare: fill, ..case(name, Topology::Single, trouble) }
}

/// Keys, and 1 000 blocks.
fn fill(stage: &mut Stage) -> Result<(), String> {
    const KEYS: &str = "for i = 1, 1000 do redis.call('SET', 'tollgate:{other-' .. ARGV[1] + i .. '}:blocked:0', \
                        'b 10 6000000000 1000 0|1800000123456789 0') end";
    for page in 0..200 {
        stage.redis()?.cli(&["eval", KEYS, "0", &(page * 1_000).to_string()]);
    }
    let server = &stage.servers[0];
    until("the server is ready", || {
        server.admin("GET", "/readyz", "").is_ok_and(|(status, _)| status == 200)
    })?;
    for client in 0..1_000 {
        let path = format!("/v1/clients/blocked-{client}/block");
        let (status, answer) = stage.servers[0].admin("PUT", &path, r#"{"for":"1h"}"#)?;
        if status != 200 && status != 404 {
            return Err(answer);
        }
    }
    Ok(())
}

/// Administrators ask again and again.
fn administer(server: &Server, administrators: usize, method: &str, path: &str) -> Result<(), String> {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let ask = || {
            while !stop.load(Ordering::Relaxed) {
                match server.admin(method, path, "") {
                    Ok((200, _)) => {}
                    Ok((_, answer)) => return Err(answer),
                    Err(error) => return Err(error),
                }
            }
            Ok(())
        };
        let asking: Vec<_> = (0..administrators).map(|_| scope.spawn(ask)).collect();
        wait(2 * A_WHILE);
        stop.store(true, Ordering::Relaxed);
        asking.into_iter().try_for_each(|asking| asking.join().map_err(|_| "an administrator panicked")?)
    })
}

/// The network between servers and Redis.
fn of_the_network() -> Vec<Case> {
    let mut cases = vec![
        case("network away for 2 s", Topology::Proxied(0), |stage| {
            stage.proxy()?.break_down();
            wait(A_WHILE);
            stage.proxy()?.mend();
            Ok(())
        }),
        case("network away for 2 s, 155 kB/s afterwards", Topology::Proxied(0), |stage| {
            stage.proxy()?.break_down();
            wait(A_WHILE);
            stage.proxy()?.set_rate(NARROW);
            stage.proxy()?.mend();
            Ok(())
        }),
        case("connections that swallow everything", Topology::Proxied(0), |stage| {
            stage.proxy()?.silence();
            Ok(())
        }),
    ];
    for round_trip in [20, 44, 60, 80, 160] {
        for deadline in [50, 4 * round_trip] {
            let name = format!("{round_trip} ms away, `deadline` {deadline} ms");
            let far = case(&name, Topology::Proxied(round_trip), |_| Ok(()));
            let deadline = Duration::from_millis(deadline);
            cases.push(Case { deadline, trouble: Trouble::Lasting, ..far });
        }
    }
    cases
}

/// Sentinel and Cluster.
fn of_several_servers() -> Vec<Case> {
    vec![
        case("planned `SENTINEL FAILOVER`", Topology::Sentinel, |stage| fail_over(stage, false)),
        case("master behind Sentinel killed", Topology::Sentinel, |stage| fail_over(stage, true)),
        case("master of a Cluster killed", Topology::Cluster, |stage| {
            let Store::Cluster(cluster) = &mut stage.store else { return Err("no Cluster".into()) };
            let master = cluster.nodes.iter().position(|node| role(node) == "master");
            cluster.nodes[master.ok_or("no master")?].kill();
            until("the others agree on a new master", || {
                let alive = cluster.nodes.iter().enumerate().filter(|(index, _)| Some(*index) != master);
                let alive: Vec<_> = alive.map(|(_, node)| node).collect();
                alive.iter().filter(|node| role(node) == "master").count() == 3
                    && alive.iter().all(|node| node.cli(&["cluster", "info"]).contains("cluster_state:ok"))
            })
        }),
    ]
}

fn fail_over(stage: &mut Stage, by_force: bool) -> Result<(), String> {
    let Store::Sentinel(sentinels) = &mut stage.store else { return Err("no Sentinels".into()) };
    let before = sentinels.master();
    if by_force {
        let master = sentinels.servers.iter_mut().find(|server| server.port.to_string() == before);
        master.ok_or("the master is unknown")?.kill();
    } else {
        sentinels.sentinels[0].cli(&["sentinel", "failover", "main"]);
    }
    until("there is a new master", || {
        let master = sentinels.master();
        let server = sentinels.servers.iter().find(|server| server.port.to_string() == master);
        master != before && server.is_some_and(|server| role(server) == "master")
    })
}

fn role(redis: &Redis) -> String {
    redis.cli(&["role"]).lines().next().unwrap_or_default().to_owned()
}

#[expect(clippy::disallowed_methods, reason = "a trouble lasts for a time")]
pub(super) fn wait(span: Duration) {
    let until = Instant::now() + span;
    while let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
        thread::sleep(left);
    }
}
