//! The sources of a configuration: read, validated, and watched for changes.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tollgate::{FailurePolicy, Paths};
use tollgate_http::{HeaderStyle, Headers};
use toml::de::DeTable;

use super::error::{ConfigError, ConfigErrors, nearest};
use super::reader::{At, Section};
use super::rules::{self, Extent};
use super::server::{self, OFF};
use super::source::{Format, PREFIX, Source};
use super::telemetry::STANDARD_PREFIX;
use super::tree::Node;
use super::values::Delay;
use super::{Config, Flags, POLICIES, Settings, credentials, is_yaml, store, telemetry, warnings};
use crate::backend::Backend;
use crate::envoy::Domains;

/// The default delay after a wrong token: two guesses a second per connection.
const FAILED_AUTH_DELAY: Duration = Duration::from_millis(500);

/// Kubernetes sets `TOLLGATE_SERVICE_*` for a service called tollgate.
const KUBERNETES_PREFIX: &str = "SERVICE_";

/// The help for a YAML file passed as `--config`.
const YAML_HELP: &str =
    "the configuration is TOML; pass the YAML of Envoy's rate limit service with --envoy-config";

/// Variables that a user may expect to set a rule.
const RULE_VARIABLES: [&str; 3] = ["LIMIT", "RULE", "RULE_VARIABLES"];

/// The sources of a configuration, kept for reloads.
#[derive(Clone, Debug, Default)]
pub struct Origin {
    /// The file, if there is one.
    pub file: Option<PathBuf>,
    /// The variables that begin with `TOLLGATE_` or `OTEL_`.
    pub environment: HashMap<String, String>,
    /// Command-line flags.
    pub flags: Flags,
}

impl Origin {
    /// The process's environment, with this file and these flags.
    pub(crate) fn of_process(file: Option<PathBuf>, flags: Flags) -> Self {
        let environment = std::env::vars_os().filter_map(|(name, value)| {
            let is_ours =
                |name: &String| [PREFIX, STANDARD_PREFIX].iter().any(|prefix| name.starts_with(prefix));
            let name = name.into_string().ok().filter(is_ours)?;
            Some((name, value.into_string().ok()?))
        });
        Self { file, environment: environment.collect(), flags }
    }

    /// Reads and validates the configuration.
    ///
    /// # Errors
    /// All errors, with their positions in the file.
    pub fn load(&self) -> Result<Config, ConfigErrors> {
        let name =
            self.file.as_ref().map_or_else(|| "the environment".into(), |file| file.display().to_string());
        let failed = |text: String, errors, elsewhere| {
            Err(ConfigErrors { file: name.clone(), text, errors, elsewhere }.sorted())
        };
        let text = match self.file.as_ref().map(fs::read_to_string) {
            None => String::new(),
            Some(Ok(text)) => text,
            Some(Err(error)) => return failed(String::new(), vec![unreadable(&name, &error)], Vec::new()),
        };
        let source = Source::new(Format::Toml, &text, &self.environment);
        let (table, errors) = DeTable::parse_recoverable(&text);
        let config = if errors.is_empty() {
            Some(self.read(&source, &Node::of_toml(table.get_ref())))
        } else {
            let span = |error: &toml::de::Error| error.span().unwrap_or(0..0);
            let error = |error: &toml::de::Error| {
                ConfigError::new("this is not TOML", "").at(span(error), error.message())
            };
            let mut errors: Vec<ConfigError> = errors.iter().map(error).collect();
            if self.file.as_deref().is_some_and(is_yaml) {
                // One error is enough: the file was taken for TOML.
                errors.truncate(1);
                errors = errors.into_iter().map(|error| error.help(YAML_HELP)).collect();
            }
            source.errors.borrow_mut().extend(errors);
            None
        };
        let (errors, elsewhere) = (source.errors.take(), source.elsewhere.take());
        match config {
            Some(config) if errors.is_empty() && elsewhere.is_empty() => Ok(config),
            _ => failed(text.clone(), errors, elsewhere),
        }
    }

    /// The text of all files, to detect changes.
    pub(crate) fn text(&self, envoy_config: Option<&Path>) -> String {
        let file = self.file.as_ref().and_then(|file| fs::read_to_string(file).ok());
        file.unwrap_or_default() + &envoy_config.map(Domains::text).unwrap_or_default()
    }

    fn read(&self, source: &Source<'_>, file: &Node) -> Config {
        let mut root = Section::root(source, file);
        let mut server = root.section("server");
        let mut settings = self.settings(source, &mut server);
        settings.envoy_config = self.envoy_config(&mut server);
        let flags = store::Flags { redis: self.flags.redis.as_deref(), data: self.flags.data.as_deref() };
        let mut store = root.section("store");
        if let Some(policy) = store.choice("on_store_error", &POLICIES) {
            settings.on_store_error = policy.value;
        }
        let store = store::read(store, flags, self.directory());
        let telemetry = telemetry::read(source, root.section("telemetry"));
        let fixed = server::fixed(source, server, &self.flags, (store, telemetry));
        // Errors of the store are reported; rules are then validated against memory.
        let backend = fixed.store.sample().unwrap_or_else(|_| Backend::Memory(Box::default()));
        // The text is read first, so a write during the load triggers another reload.
        let text = self.text(settings.envoy_config.as_deref());
        if let Some(path) = &settings.envoy_config {
            let read =
                Domains::read(path, &backend).map_err(|errors| source.elsewhere.borrow_mut().extend(errors));
            settings.domains = Arc::new(read.unwrap_or_default());
        }
        let context = rules::Context {
            store: &backend,
            settings: &fixed.store,
            domains: &settings.domains,
            policy: settings.on_store_error,
        };
        let rules = rules::read(source, &mut root, self.flags.limit, &context);
        let rules = rules.with_paths(settings.paths);
        root.finish();
        let mut warnings = self.misspelt(source);
        warnings.extend(warnings::of(&rules, &settings.attributes, fixed.addresses.grpc != OFF));
        if settings.envoy_config.is_some() && fixed.addresses.grpc == OFF {
            warnings.push("gRPC is off, so the limits of envoy_config are unused".into());
        }
        Config { warnings, fixed, settings, rules, text, extent: Extent::of(file) }
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
            paths: server.choice("path", &server::PATHS).map_or(Paths::default(), |paths| paths.value),
            admin_token: credentials::admin_token(self, source, server),
            failed_auth_delay: server.get_or("failed_auth_delay", Delay(FAILED_AUTH_DELAY)).0,
            hash_keys_in_logs: server.get_or("hash_keys_in_logs", false),
            grpc_refunds: server.get_or("grpc_refunds", false),
            grpc_share: server::grpc_share(server),
            deny_uncovered: server
                .choice("on_uncovered", &[("allow", false), ("deny", true)])
                .is_some_and(|deny| deny.value),
            attributes: server
                .list::<String>("attributes")
                .unwrap_or_default()
                .into_iter()
                .map(|at| at.value)
                .collect(),
            tls: credentials::tls(self, server),
            on_store_error: FailurePolicy::default(),
            envoy_config: None,
            domains: Arc::default(),
        }
    }

    /// The path of the rate limit service's YAML. A flag is relative to the working directory, a
    /// setting to the directory of its file.
    fn envoy_config(&self, server: &mut Section<'_>) -> Option<PathBuf> {
        let setting = server.get::<String>("envoy_config");
        self.flags.envoy_config.clone().or_else(|| Some(self.directory().join(setting?.value)))
    }

    /// The directory of the file, to which its paths are relative.
    fn directory(&self) -> &Path {
        self.file.as_deref().and_then(Path::parent).unwrap_or(Path::new(""))
    }

    /// The contents of a file that a setting names.
    pub(super) fn read_file(&self, section: &Section<'_>, named: &At<String>) -> Option<Vec<u8>> {
        let path = self.directory().join(&named.value);
        fs::read(&path)
            .map_err(|error| {
                section.report(unreadable(&path.display().to_string(), &error).at(named.span.clone(), "here"))
            })
            .ok()
    }

    /// Warnings about unread variables that resemble a setting's, or end like one. Other unread
    /// variables may belong to another program.
    fn misspelt(&self, source: &Source<'_>) -> Vec<String> {
        let asked = source.read_variables.borrow();
        let unread = self.environment.keys().filter(|name| name.starts_with(PREFIX) && !asked.contains(name));
        let near = |name: &String| {
            let stem = |name: &str| name.strip_prefix(PREFIX).unwrap_or_default().to_owned();
            let stems: Vec<String> = asked.iter().map(|name| stem(name)).collect();
            let written = stem(name);
            if written.starts_with(KUBERNETES_PREFIX) {
                return None;
            }
            if RULE_VARIABLES.contains(&written.as_str()) {
                return Some(format!(
                    "the variable {name} is not read: rules have no variables; use --limit, or a file"
                ));
            }
            let ending = format!("_{written}");
            let whole = stems.iter().map(String::as_str).find(|known| known.ends_with(&ending));
            let near = whole.or_else(|| nearest(&written, stems.iter().map(String::as_str)))?;
            Some(format!("the variable {name} is not read; did you mean {PREFIX}{near}?"))
        };
        unread.filter_map(near).collect()
    }
}

fn unreadable(file: &str, error: &io::Error) -> ConfigError {
    ConfigError::new(format!("cannot read {file}: {error}"), "check its path and permissions")
}
