//! The configuration: a file, over which the environment counts, over which flags count.
//!
//! A [`Config`] that exists works: limits and rules are built, certificates and tokens are read.
//! Whatever is wrong is told all at once, as [`ConfigErrors`].

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tollgate::{FailurePolicy, Limit, RuleSet};
use tollgate_http::{HeaderStyle, Headers, Identity};
use toml::de::DeTable;

use crate::backend::Backend;
use crate::envoy::Domains;
use crate::secret::Secret;
use crate::tls::{self, Tls};

mod error;
mod reader;
mod rules;
mod server;
mod store;
mod summary;
mod values;

pub(crate) use error::nearest;
pub use error::{ConfigError, ConfigErrors};
use reader::{At, PREFIX, Section, Source};
pub use rules::Extent;
pub(crate) use server::WORKERS_MAX;
pub use server::{Addresses, Fixed, LogFormat, OFF};
pub use store::Store;
use values::Delay;

/// Every setting, explained: what `tollgate init` writes.
pub const STARTER: &str = include_str!("../tollgate.toml");

/// The variable that holds the admin token, if no file does.
const ADMIN_TOKEN: &str = "TOLLGATE_ADMIN_TOKEN";

/// An admin token shorter than this could be guessed.
const TOKEN_BYTES_MIN: usize = 16;

/// Two guesses a second on each connection.
const FAILED_AUTH_DELAY: Duration = Duration::from_millis(500);

/// What comes after `TOLLGATE_` in what Kubernetes tells of a service called tollgate, and looks like ours.
const KUBERNETES_PREFIX: &str = "SERVICE_";

/// What to do with YAML.
const YAML_HELP: &str =
    "this is to be TOML; limits as Envoy's reference service has them belong to --envoy-config";

/// What people take for the variable of a rule.
const RULE_VARIABLES: [&str; 3] = ["LIMIT", "RULE", "RULE_VARIABLES"];

/// What is configured.
#[derive(Clone, Debug)]
pub struct Config {
    /// What takes effect when the server starts, and not before it starts again.
    pub fixed: Fixed,
    /// What takes effect at once when the file changes.
    pub settings: Settings,
    /// The rules; they too take effect at once.
    pub rules: RuleSet,
    /// What looks like a mistake but is not one for certain.
    pub warnings: Vec<String>,
    /// What all its files say.
    pub text: String,
    /// How much the file says.
    pub extent: Extent,
}

/// What a running server can change.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The header fields of answers.
    pub headers: Headers,
    /// Who asks.
    pub identity: Identity,
    /// What opens the administration; made up at the start if there is none.
    pub admin_token: Option<Secret>,
    /// How long the answer to a wrong token takes.
    pub failed_auth_delay: Duration,
    /// Whether clients are hashed in logs.
    pub hash_keys_in_logs: bool,
    /// Whether descriptors over gRPC may give units back.
    pub grpc_refunds: bool,
    /// Certificates.
    pub tls: Option<Tls>,
    /// What rules do when the store fails, unless they say otherwise.
    pub on_store_error: FailurePolicy,
    /// Where the reference service's files are, if it has any.
    pub envoy_config: Option<PathBuf>,
    /// What they say.
    pub(crate) domains: Arc<Domains>,
}

impl Config {
    /// What is missing that a file of this extent and these settings had, if it looks cut.
    pub(crate) fn lost_since(&self, extent: Extent, before: &Settings) -> Option<String> {
        if self.extent < extent {
            let lost = if self.extent == Extent::Empty { "says nothing" } else { "has no rule" };
            return Some(format!("the file {lost} any more; if that is meant, start the server again"));
        }
        let domain = self.settings.domains.emptied_since(&before.domains)?;
        Some(format!("the domain {domain:?} has no limit any more; if that is meant, remove its file"))
    }
}

/// Flags, which count more than anything else.
#[derive(Clone, Debug, Default)]
pub struct Flags {
    /// Where to listen for HTTP.
    pub http: Option<String>,
    /// Where to listen for gRPC.
    pub grpc: Option<String>,
    /// Where to listen for the Redis protocol.
    pub resp: Option<String>,
    /// What each client may do, in place of rules.
    pub limit: Option<Limit>,
    /// How many threads answer.
    pub workers: Option<usize>,
    /// Files of the reference service.
    pub envoy_config: Option<PathBuf>,
    /// Where Redis is.
    pub redis: Option<String>,
    /// The directory to keep state in.
    pub data: Option<PathBuf>,
}

/// Where a configuration comes from, so that it can be read again.
#[derive(Clone, Debug, Default)]
pub struct Origin {
    /// The file, if there is one.
    pub file: Option<PathBuf>,
    /// Variables that begin with `TOLLGATE_`.
    pub environment: HashMap<String, String>,
    /// Flags.
    pub flags: Flags,
}

impl Origin {
    /// The process's environment, and this file and flags.
    #[must_use]
    pub fn of_process(file: Option<PathBuf>, flags: Flags) -> Self {
        let environment = std::env::vars_os().filter_map(|(name, value)| {
            let name = name.into_string().ok().filter(|name| name.starts_with(PREFIX))?;
            Some((name, value.into_string().ok()?))
        });
        Self { file, environment: environment.collect(), flags }
    }

    /// Reads everything.
    ///
    /// # Errors
    /// All that is wrong, in one sentence or with the places in the file.
    pub fn load(&self) -> Result<Config, ConfigErrors> {
        let name =
            self.file.as_ref().map_or_else(|| "the environment".into(), |file| file.display().to_string());
        let told = |text: String, errors, elsewhere| {
            Err(ConfigErrors { file: name.clone(), text, errors, elsewhere }.sorted())
        };
        let text = match self.file.as_ref().map(fs::read_to_string) {
            None => String::new(),
            Some(Ok(text)) => text,
            Some(Err(error)) => return told(String::new(), vec![unreadable(&name, &error)], Vec::new()),
        };
        let source = Source {
            text: &text,
            environment: &self.environment,
            errors: Default::default(),
            elsewhere: Default::default(),
            read_variables: Default::default(),
        };
        let (table, errors) = DeTable::parse_recoverable(&text);
        let config = if errors.is_empty() {
            Some(self.read(&source, table.get_ref()))
        } else {
            let span = |error: &toml::de::Error| error.span().unwrap_or(0..0);
            let error = |error: &toml::de::Error| {
                ConfigError::new("this is not TOML", "").at(span(error), error.message())
            };
            let mut errors: Vec<ConfigError> = errors.iter().map(error).collect();
            if self.file.as_deref().is_some_and(is_yaml) {
                // One is enough: what is wrong is that it was taken for TOML.
                errors.truncate(1);
                errors = errors.into_iter().map(|error| error.help(YAML_HELP)).collect();
            }
            source.errors.borrow_mut().extend(errors);
            None
        };
        let (errors, elsewhere) = (source.errors.take(), source.elsewhere.take());
        match config {
            Some(config) if errors.is_empty() && elsewhere.is_empty() => Ok(config),
            _ => told(text.clone(), errors, elsewhere),
        }
    }

    /// What all files say: to see whether anything changed.
    pub(crate) fn text(&self, envoy_config: Option<&Path>) -> String {
        let file = self.file.as_ref().and_then(|file| fs::read_to_string(file).ok());
        file.unwrap_or_default() + &envoy_config.map(Domains::text).unwrap_or_default()
    }

    fn read(&self, source: &Source<'_>, table: &DeTable<'_>) -> Config {
        let mut root = Section::root(source, table);
        let mut server = root.section("server");
        let mut settings = self.settings(source, &mut server);
        settings.envoy_config = self.envoy_config(&mut server);
        let flags = store::Flags { redis: self.flags.redis.as_deref(), data: self.flags.data.as_deref() };
        let mut store = root.section("store");
        if let Some(policy) = store.choice("on_store_error", &POLICIES) {
            settings.on_store_error = policy.value;
        }
        let store = store::read(store, flags, self.directory());
        let fixed = server::fixed(source, server, &self.flags, store);
        // What is wrong with the store has been noted; rules are then read as for memory.
        let backend = fixed.store.sample().unwrap_or_else(|_| Backend::Memory(Box::default()));
        // First the text: what is written while it is read is read again.
        let text = self.text(settings.envoy_config.as_deref());
        if let Some(path) = &settings.envoy_config {
            let read =
                Domains::read(path, &backend).map_err(|wrong| source.elsewhere.borrow_mut().extend(wrong));
            settings.domains = Arc::new(read.unwrap_or_default());
        }
        let context = rules::Context {
            store: &backend,
            settings: &fixed.store,
            domains: &settings.domains,
            policy: settings.on_store_error,
        };
        let rules = rules::read(source, &mut root, self.flags.limit, &context);
        root.finish();
        let mut warnings = self.misspelt(source);
        if settings.envoy_config.is_some() && fixed.addresses.grpc == OFF {
            warnings.push("gRPC is off, so nobody can ask for the limits of envoy_config".into());
        }
        Config { warnings, fixed, settings, rules, text, extent: Extent::of(table) }
    }

    fn settings(&self, source: &Source<'_>, server: &mut Section<'_>) -> Settings {
        let styles = [
            ("standard", HeaderStyle::Standard),
            ("trio", HeaderStyle::Trio),
            ("x", HeaderStyle::X),
            ("x-epoch", HeaderStyle::XEpoch),
            ("off", HeaderStyle::Off),
        ];
        let style = server.choice("headers", &styles).map_or(HeaderStyle::default(), |style| style.value);
        Settings {
            headers: Headers::new(style),
            identity: server::identity(server),
            admin_token: self.admin_token(source, server),
            failed_auth_delay: server.get_or("failed_auth_delay", Delay(FAILED_AUTH_DELAY)).0,
            hash_keys_in_logs: server.get_or("hash_keys_in_logs", false),
            grpc_refunds: server.get_or("grpc_refunds", false),
            tls: self.tls(server),
            on_store_error: FailurePolicy::default(),
            envoy_config: None,
            domains: Arc::default(),
        }
    }

    fn admin_token(&self, source: &Source<'_>, server: &mut Section<'_>) -> Option<Secret> {
        let file = server.get::<String>("admin_token_file");
        source.read_variables.borrow_mut().push(ADMIN_TOKEN.into());
        let (token, told) = if let Some(token) = self.environment.get(ADMIN_TOKEN) {
            (token.clone(), ConfigError::new(format!("{ADMIN_TOKEN} is too short"), ""))
        } else {
            let file = file?;
            let token = self.read_file(server, &file)?;
            (
                String::from_utf8(token).unwrap_or_default(),
                at_value(ConfigError::new("the admin token is too short", ""), &file),
            )
        };
        let token = token.trim();
        let graphic = token.bytes().all(|byte| byte.is_ascii_graphic());
        if token.len() < TOKEN_BYTES_MIN || !graphic {
            let help = format!(
                "write at least {TOKEN_BYTES_MIN} printable characters without spaces, such as `openssl rand -hex 32` makes"
            );
            source.report(told.help(help));
            return None;
        }
        Some(Secret::new(token.into()))
    }

    fn tls(&self, server: &mut Section<'_>) -> Option<Tls> {
        let mut section = server.section("tls");
        let (cert, key) = (section.get::<String>("cert"), section.get::<String>("key"));
        let client_ca = section.get::<String>("client_ca");
        let heading = server
            .span("tls")
            .filter(|_| section.is_bare())
            .map(|span| At { value: String::new(), span: Some(span) });
        let lone = match (&cert, &key, &client_ca) {
            (Some(cert), None, _) => Some((cert, "a certificate needs its key", "add `key`")),
            (None, Some(key), _) => Some((key, "a key needs its certificate", "add `cert`")),
            (None, None, Some(ca)) => Some((ca, "client certificates need TLS", "add `cert` and `key`")),
            (None, None, None) => {
                heading.as_ref().map(|at| (at, "TLS needs a certificate and its key", "add `cert` and `key`"))
            }
            _ => None,
        };
        if let Some((at, message, help)) = lone {
            section.report(at_value(ConfigError::new(message, help), at));
        }
        let built = cert.zip(key).and_then(|(cert, key)| {
            let certificate = self.read_file(&section, &cert);
            let private = self.read_file(&section, &key);
            let authorities = match &client_ca {
                Some(file) => Some(self.read_file(&section, file)?),
                None => None,
            };
            let built = tls::server_config(&certificate?, &private?, authorities.as_deref());
            built
                .map_err(|wrong| {
                    let at = match wrong.file {
                        tls::File::Certificate => &cert,
                        tls::File::Key => &key,
                        tls::File::ClientAuthority => client_ca.as_ref().unwrap_or(&cert),
                    };
                    section.report(at_value(ConfigError::new(wrong.reason, wrong.help), at));
                })
                .ok()
        });
        section.finish();
        built
    }

    /// Where the reference service's files are: a flag is relative to where one is, a setting to the file it is in.
    fn envoy_config(&self, server: &mut Section<'_>) -> Option<PathBuf> {
        let setting = server.get::<String>("envoy_config");
        self.flags.envoy_config.clone().or_else(|| Some(self.directory().join(setting?.value)))
    }

    /// What paths in the configuration are relative to: its own directory.
    fn directory(&self) -> &Path {
        self.file.as_deref().and_then(Path::parent).unwrap_or(Path::new(""))
    }

    /// What stands in a file that a setting names.
    fn read_file(&self, section: &Section<'_>, named: &At<String>) -> Option<Vec<u8>> {
        let path = self.directory().join(&named.value);
        fs::read(&path)
            .map_err(|error| section.report(at_value(unreadable(&path.display().to_string(), &error), named)))
            .ok()
    }

    /// Variables that nobody asked for, but that look like some that somebody does, or like their
    /// last words. Others may belong to someone else: Kubernetes makes a few for a service called
    /// tollgate.
    fn misspelt(&self, source: &Source<'_>) -> Vec<String> {
        let asked = source.read_variables.borrow();
        let strange = self.environment.keys().filter(|name| !asked.contains(name));
        let near = |name: &String| {
            let stem = |name: &str| name.strip_prefix(PREFIX).unwrap_or_default().to_owned();
            let stems: Vec<String> = asked.iter().map(|name| stem(name)).collect();
            let written = stem(name);
            if written.starts_with(KUBERNETES_PREFIX) {
                return None;
            }
            if RULE_VARIABLES.contains(&written.as_str()) {
                return Some(format!(
                    "nothing reads the variable {name}: rules have none; use --limit, or a file"
                ));
            }
            let ending = format!("_{written}");
            let whole = stems.iter().map(String::as_str).find(|known| known.ends_with(&ending));
            let near = whole.or_else(|| nearest(&written, stems.iter().map(String::as_str)))?;
            Some(format!("nothing reads the variable {name}; did you mean {PREFIX}{near}?"))
        };
        strange.filter_map(near).collect()
    }
}

const POLICIES: [(&str, FailurePolicy); 3] =
    [("open", FailurePolicy::Open), ("closed", FailurePolicy::Closed), ("local", FailurePolicy::Local)];

/// A failure policy's name.
pub(crate) fn policy_name(policy: FailurePolicy) -> &'static str {
    POLICIES.iter().find(|(_, known)| *known == policy).map_or("", |(name, _)| name)
}

/// Whether a file calls itself YAML_HELP: only limits as Envoy's reference service has them are.
pub(crate) fn is_yaml(file: &Path) -> bool {
    file.extension().is_some_and(|kind| kind == "yaml" || kind == "yml")
}

/// A error at a value.
fn at_value<T>(error: ConfigError, value: &At<T>) -> ConfigError {
    match &value.span {
        Some(span) => error.at(span.clone(), "here"),
        None => error,
    }
}

fn unreadable(file: &str, error: &io::Error) -> ConfigError {
    ConfigError::new(format!("cannot read {file}: {error}"), "check the name and who may read it")
}
