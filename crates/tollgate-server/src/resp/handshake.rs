//! Commands that have nothing to do with limits: the handshake of client libraries, and
//! introspection.

use std::fmt::Write as _;

use super::command::{Other, wrong_arity};
use super::reply::Version;
use super::session::Session;
use super::throttle::integer;
use super::transaction::Queue;

/// Every command and its arity, as Redis defines it: counted with the name, and a minimum if
/// negative.
const COMMANDS: [(&str, i64); 24] = [
    ("auth", -2),
    ("cl.throttle", -5),
    ("client", -2),
    ("command", -1),
    ("config", -2),
    ("discard", 1),
    ("echo", 2),
    ("exec", 1),
    ("hello", -1),
    ("info", -1),
    ("multi", 1),
    ("ping", -1),
    ("quit", -1),
    ("readonly", 1),
    ("reset", 1),
    ("select", 2),
    ("toll.acquire", -4),
    ("toll.check", -1),
    ("toll.record", -1),
    ("toll.release", 2),
    ("toll.renew", 3),
    ("toll.reset", 2),
    ("toll.rules", 1),
    ("unwatch", 1),
];

/// Whether a command of this name exists.
pub(super) fn is_command(name: &[u8]) -> bool {
    COMMANDS.iter().any(|(known, _)| name.eq_ignore_ascii_case(known.as_bytes()))
}

/// The Redis version to report, from which libraries infer features.
const REDIS_VERSION: &str = "7.0.0";

/// Replies to a command that has nothing to do with limits.
pub(super) fn answer(session: &mut Session, other: &Other<'_>) {
    let (name, arguments) = (other.name.as_str(), other.arguments.as_slice());
    let replies = &mut session.replies;
    match (name, arguments) {
        ("ping", []) => replies.simple("PONG"),
        ("ping" | "echo", [text]) => replies.bulk(text),
        ("hello", _) => hello(session, arguments),
        ("auth", [token] | [_, token]) => {
            if session.authenticate(token) {
                session.replies.simple("OK");
            }
        }
        ("select", [b"0"]) | ("readonly" | "unwatch", []) => replies.simple("OK"),
        ("multi", []) if session.queue.is_some() => replies.error("ERR", "MULTI calls can not be nested"),
        ("multi", []) => {
            session.queue = Some(Queue::default());
            replies.simple("OK");
        }
        ("discard", []) => match session.queue.take() {
            Some(_) => replies.simple("OK"),
            None => replies.error("ERR", "DISCARD without MULTI"),
        },
        ("select", [_]) => replies.error("ERR", "DB index is out of range; only 0 exists"),
        ("quit", _) => {
            replies.simple("OK");
            session.closing = true;
        }
        ("reset", []) => {
            session.reset_state();
            session.replies.simple("RESET");
        }
        ("client", [subcommand, rest @ ..]) => client(session, &lower(subcommand), rest),
        ("command", []) => commands(session, COMMANDS.iter().map(Some)),
        ("command", [subcommand, rest @ ..]) => command(session, &lower(subcommand), rest),
        ("config", [subcommand, patterns @ ..]) if lower(subcommand) == "get" => config(session, patterns),
        ("info", _) => replies.text(&server_info()),
        _ if COMMANDS.iter().any(|(known, _)| *known == name) => {
            replies.error("ERR", wrong_arity(name));
        }
        _ => unknown(session, name, arguments),
    }
}

/// `HELLO [version] [AUTH user password] [SETNAME name]`
fn hello(session: &mut Session, arguments: &[&[u8]]) {
    let mut arguments = arguments.iter();
    let mut version = session.replies.version;
    if let Some(requested) = arguments.next() {
        version = match integer(requested) {
            Ok(2) => Version::Two,
            Ok(3) => Version::Three,
            Ok(_) => {
                return session.replies.error("NOPROTO", "unsupported protocol version; use 2 or 3");
            }
            Err(_) => {
                return session.replies.error("ERR", "Protocol version is not an integer or out of range");
            }
        };
    }
    let mut name = None;
    while let Some(option) = arguments.next() {
        match (lower(option).as_str(), arguments.next(), &mut arguments) {
            ("auth", Some(_user), rest) => match rest.next() {
                Some(token) if session.authenticate(token) => {}
                Some(_) => return,
                None => return session.replies.error("ERR", "syntax error in HELLO option 'auth'"),
            },
            ("setname", Some(chosen), _) if is_name(chosen) => name = Some(chosen.to_vec()),
            ("setname", Some(_), _) => return session.replies.error("ERR", INVALID_CLIENT_NAME),
            (option, ..) => {
                return session.replies.error("ERR", format_args!("syntax error in HELLO option '{option}'"));
            }
        }
    }
    session.name = name.unwrap_or_else(|| std::mem::take(&mut session.name));
    session.replies.version = version;
    let (id, replies) = (session.id, &mut session.replies);
    replies.map(7);
    for (key, text) in [("server", "tollgate"), ("version", REDIS_VERSION)] {
        replies.bulk(key.as_bytes());
        replies.bulk(text.as_bytes());
    }
    replies.bulk(b"proto");
    replies.integer(if version == Version::Three { 3 } else { 2 });
    replies.bulk(b"id");
    replies.integer(id);
    for (key, text) in [("mode", "standalone"), ("role", "master")] {
        replies.bulk(key.as_bytes());
        replies.bulk(text.as_bytes());
    }
    replies.bulk(b"modules");
    replies.array(0);
}

/// The longest name of a client.
const NAME_BYTES_MAX: usize = 128;

const INVALID_CLIENT_NAME: &str = "a client name has at most 128 printable characters and no spaces";

fn is_name(name: &[u8]) -> bool {
    name.len() <= NAME_BYTES_MAX && name.iter().all(u8::is_ascii_graphic)
}

fn client(session: &mut Session, subcommand: &str, arguments: &[&[u8]]) {
    let description =
        |session: &Session| format!("id={} name={}", session.id, String::from_utf8_lossy(&session.name));
    let description =
        if matches!(subcommand, "info" | "list") { description(session) } else { String::new() };
    let replies = &mut session.replies;
    match (subcommand, arguments) {
        ("setname", [name]) if !is_name(name) => replies.error("ERR", INVALID_CLIENT_NAME),
        ("setname", [name]) => {
            session.name = name.to_vec();
            replies.simple("OK");
        }
        ("getname", []) if session.name.is_empty() => replies.null(),
        ("getname", []) => replies.bulk(&session.name),
        ("id", []) => replies.integer(session.id),
        ("info", []) => replies.text(&description),
        ("list", _) => replies.text(&format!("{description}\n")),
        // No reply can be cached, so tracking never sends an invalidation.
        ("setinfo" | "no-evict" | "no-touch" | "tracking" | "caching", _) => replies.simple("OK"),
        _ => replies.error("ERR", format_args!("unknown subcommand '{subcommand}' of CLIENT")),
    }
}

fn command(session: &mut Session, subcommand: &str, names: &[&[u8]]) {
    let replies = &mut session.replies;
    let find = |name: &&[u8]| {
        let name = lower(name);
        COMMANDS.iter().find(move |(known, _)| *known == name)
    };
    match subcommand {
        "count" => replies.integer(i64::try_from(COMMANDS.len()).unwrap_or(0)),
        // No documentation: clients then show none.
        "docs" => replies.map(0),
        "list" => {
            replies.array(COMMANDS.len());
            COMMANDS.iter().for_each(|(name, _)| replies.bulk(name.as_bytes()));
        }
        "info" if names.is_empty() => commands(session, COMMANDS.iter().map(Some)),
        "info" => commands(session, names.iter().map(find)),
        _ => replies.error("ERR", format_args!("unknown subcommand '{subcommand}' of COMMAND")),
    }
}

/// The reply of `COMMAND`: names, arities and key positions.
fn commands<'a>(session: &mut Session, chosen: impl ExactSizeIterator<Item = Option<&'a (&'a str, i64)>>) {
    let replies = &mut session.replies;
    replies.array(chosen.len());
    for command in chosen {
        let Some((name, arity)) = command else {
            replies.null();
            continue;
        };
        let key = i64::from(*name == "cl.throttle");
        replies.array(6);
        replies.bulk(name.as_bytes());
        replies.integer(*arity);
        replies.array(1);
        replies.simple("fast");
        (0..3).for_each(|_| replies.integer(key));
    }
}

/// The settings that load generators read, and warn about if they are missing.
fn config(session: &mut Session, patterns: &[&[u8]]) {
    let known = [("save", ""), ("appendonly", "no")];
    let is_requested = |name: &str| patterns.iter().any(|pattern| *pattern == b"*" || lower(pattern) == name);
    let requested: Vec<_> = known.iter().filter(|(name, _)| is_requested(name)).collect();
    session.replies.map(requested.len());
    for (name, value) in requested {
        session.replies.bulk(name.as_bytes());
        session.replies.bulk(value.as_bytes());
    }
}

fn server_info() -> String {
    let mut text = String::new();
    let version = env!("CARGO_PKG_VERSION");
    // Writing to memory does not fail.
    let _ = write!(
        text,
        "# Server\r\nredis_version:{REDIS_VERSION}\r\ntollgate_version:{version}\r\nredis_mode:standalone\r\nprocess_id:{}\r\n\
         \r\n# Persistence\r\nloading:0\r\n\r\n# Replication\r\nrole:master\r\nconnected_slaves:0\r\n\r\n# Cluster\r\ncluster_enabled:0\r\n",
        std::process::id()
    );
    text
}

fn unknown(session: &mut Session, name: &str, arguments: &[&[u8]]) {
    /// The most characters of an unknown command to repeat.
    const SHOWN: usize = 128;
    let mut shown = String::new();
    for argument in arguments {
        if shown.len() >= SHOWN {
            break;
        }
        let text = String::from_utf8_lossy(argument);
        let _ = write!(shown, "'{}' ", text.chars().take(SHOWN).collect::<String>());
    }
    let name: String = name.chars().take(SHOWN).collect();
    session.replies.error("ERR", format_args!("unknown command '{name}', with args beginning with: {shown}"));
}

fn lower(text: &[u8]) -> String {
    String::from_utf8_lossy(text).to_lowercase()
}
