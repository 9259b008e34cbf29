//! What client libraries say before they come to the point, and what people type to look around.

use std::fmt::Write as _;

use super::reply::Version;
use super::session::Session;
use super::throttle::integer;
use super::transaction::Queue;

/// Every command: its name, and how many arguments it has with its name, at least that many if it
/// is negative.
const COMMANDS: [(&str, i64); 20] = [
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
    ("toll.check", -1),
    ("toll.reset", 2),
    ("toll.rules", 1),
    ("unwatch", 1),
];

/// Whether there is a command of this name.
pub(super) fn is_command(name: &[u8]) -> bool {
    COMMANDS.iter().any(|(known, _)| name.eq_ignore_ascii_case(known.as_bytes()))
}

/// Which Redis to pass for. Libraries look at it to see what they can ask for.
const REDIS_VERSION: &str = "7.0.0";

/// Answers a command that has nothing to do with limits.
pub(super) fn answer(session: &mut Session, name: &str, arguments: &[&[u8]]) {
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
        ("select", [_]) => replies.error("ERR", "DB index is out of range; there is only 0"),
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
            replies.error("ERR", format_args!("wrong number of arguments for '{name}' command"));
        }
        _ => unknown(session, name, arguments),
    }
}

/// `HELLO [version] [AUTH user password] [SETNAME name]`
fn hello(session: &mut Session, arguments: &[&[u8]]) {
    let mut arguments = arguments.iter();
    let mut version = session.replies.version;
    if let Some(asked) = arguments.next() {
        version = match integer(asked) {
            Ok(2) => Version::Two,
            Ok(3) => Version::Three,
            Ok(_) => {
                return session.replies.error("NOPROTO", "unsupported protocol version; there are 2 and 3");
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

const INVALID_CLIENT_NAME: &str =
    "a client's name has up to 128 characters, and no spaces, newlines or special ones";

fn is_name(name: &[u8]) -> bool {
    name.len() <= NAME_BYTES_MAX && name.iter().all(u8::is_ascii_graphic)
}

fn client(session: &mut Session, subcommand: &str, arguments: &[&[u8]]) {
    let described =
        |session: &Session| format!("id={} name={}", session.id, String::from_utf8_lossy(&session.name));
    let described = if matches!(subcommand, "info" | "list") { described(session) } else { String::new() };
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
        ("info", []) => replies.text(&described),
        ("list", _) => replies.text(&format!("{described}\n")),
        // Nothing here can be cached, so that nobody has to be told that it changed.
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
        // Nothing to say about any of them: then clients show none.
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

/// Commands as `COMMAND` tells them: names, numbers of arguments, and where their keys are.
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

/// Load generators ask for these two, and warn if nobody answers.
fn config(session: &mut Session, patterns: &[&[u8]]) {
    let known = [("save", ""), ("appendonly", "no")];
    let is_asked = |name: &str| patterns.iter().any(|pattern| *pattern == b"*" || lower(pattern) == name);
    let asked: Vec<_> = known.iter().filter(|(name, _)| is_asked(name)).collect();
    session.replies.map(asked.len());
    for (name, value) in asked {
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
    /// How much of what nobody knows is repeated.
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
