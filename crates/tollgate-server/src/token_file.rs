//! The generated admin token in a file that only its user can read, for commands on the same
//! machine.
//!
//! The file is named after the address of the listener, and is in `$XDG_RUNTIME_DIR/tollgate` or in
//! the data directory. The server holds a lock on the file while it runs, so a file that a killed
//! server left behind is recognised. A command sends the token to the address in the file's name
//! only, where nobody but that server can listen.

use std::env;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::process::geteuid;
use ureq::http::Uri;

use crate::secret::Secret;

/// The directory of the user's running programs.
const RUNTIME_DIRECTORY: &str = "XDG_RUNTIME_DIR";

/// The setting of the data directory, as commands see it.
const DATA_DIRECTORY: &str = "TOLLGATE_STORE_DATA";

/// The longest token in a file.
const TOKEN_BYTES_MAX: u64 = 4096;

/// The file of a running server, removed when dropped.
#[derive(Debug)]
pub(crate) struct TokenFile {
    path: PathBuf,
    /// Locked until it is closed.
    _locked: File,
}

impl TokenFile {
    /// Writes the token of the server that listens at `listener`, into the runtime directory or
    /// else into `data`. A file of that name is replaced.
    ///
    /// # Errors
    /// Why no directory can have it.
    pub(crate) fn create(listener: SocketAddr, data: Option<&Path>, token: &Secret) -> Result<Self, String> {
        let mut reasons = Vec::new();
        for directory in runtime_directory().iter().map(PathBuf::as_path).chain(data) {
            match Self::create_in(directory, listener, token) {
                Ok(file) => return Ok(file),
                Err(error) => reasons.push(format!("{}: {error}", directory.display())),
            }
        }
        if reasons.is_empty() {
            return Err(format!("{RUNTIME_DIRECTORY} is not set and there is no data directory"));
        }
        Err(reasons.join("; "))
    }

    fn create_in(directory: &Path, listener: SocketAddr, token: &Secret) -> io::Result<Self> {
        match DirBuilder::new().mode(0o700).create(directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let found = fs::symlink_metadata(directory)?;
        if !found.is_dir() || found.uid() != geteuid().as_raw() || found.mode() & 0o022 != 0 {
            return Err(io::Error::other("other users can write into it"));
        }
        let path = directory.join(name(listener));
        let unfinished = path.with_added_extension("new");
        match fs::remove_file(&unfinished) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&unfinished)?;
        // Nobody else knows the new file, so the lock is free.
        file.try_lock()?;
        writeln!(file, "{}", token.reveal())?;
        fs::rename(&unfinished, &path)?;
        Ok(Self { path, _locked: file })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for TokenFile {
    fn drop(&mut self) {
        // A file that is gone already was removed by its user.
        let _ = fs::remove_file(&self.path);
    }
}

/// The token of a running server on this machine, as its file has it.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) path: PathBuf,
    pub(crate) token: Secret,
    /// The URL of the server that may see the token.
    pub(crate) server: String,
}

/// Looks for the token of the server at the URL `server`. `None` if the server is not on this
/// machine, or has no file.
///
/// # Errors
/// A sentence, if there is a file that must not be used.
pub(crate) fn find(server: &str) -> Result<Option<Found>, String> {
    let data = env::var_os(DATA_DIRECTORY).filter(|data| !data.is_empty()).map(PathBuf::from);
    for directory in runtime_directory().into_iter().chain(data) {
        for listener in listeners_of(server) {
            let path = directory.join(name(listener));
            if let Some(token) = read(&path)? {
                return Ok(Some(Found { token, server: url_of(server, listener), path }));
            }
        }
    }
    Ok(None)
}

/// `$XDG_RUNTIME_DIR/tollgate`. A relative path is ignored, as the XDG specification says.
fn runtime_directory() -> Option<PathBuf> {
    let directory = env::var_os(RUNTIME_DIRECTORY).map(PathBuf::from)?;
    directory.is_absolute().then(|| directory.join("tollgate"))
}

fn name(listener: SocketAddr) -> String {
    format!("{listener}.token")
}

/// The addresses of listeners that a request for `server` reaches, if it is on this machine.
fn listeners_of(server: &str) -> Vec<SocketAddr> {
    let Ok(url) = server.parse::<Uri>() else { return Vec::new() };
    let Some(host) = url.host() else { return Vec::new() };
    let port = url.port_u16().unwrap_or(if url.scheme_str() == Some("https") { 443 } else { 80 });
    let any_v4 = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    let any_v6 = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    let addresses = match host.trim_matches(['[', ']']).parse::<IpAddr>() {
        Ok(address @ IpAddr::V4(_)) if address.is_loopback() => vec![address, any_v4, any_v6],
        Ok(address @ IpAddr::V6(_)) if address.is_loopback() => vec![address, any_v6],
        Err(_) if host.eq_ignore_ascii_case("localhost") => {
            vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into(), any_v4, any_v6]
        }
        _ => Vec::new(),
    };
    addresses.into_iter().map(|address| SocketAddr::new(address, port)).collect()
}

/// The URL at which the token is safe: without a certificate to prove who listens, the address of
/// the file's own listener.
fn url_of(server: &str, listener: SocketAddr) -> String {
    if server.starts_with("https:") { server.to_owned() } else { format!("http://{}", reachable(listener)) }
}

/// The address at which this machine reaches a listener.
pub(crate) fn reachable(listener: SocketAddr) -> SocketAddr {
    let address = match listener.ip() {
        IpAddr::V4(address) if address.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(address) if address.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        address => address,
    };
    SocketAddr::new(address, listener.port())
}

/// The token in a file that a running server of this user wrote.
fn read(path: &Path) -> Result<Option<Secret>, String> {
    let refused = |reason: &str| {
        let file = path.display();
        Err(format!("the token in {file} is not used, because {reason}; remove the file, or give the token"))
    };
    let flags = i32::try_from(OFlags::NOFOLLOW.bits() | OFlags::NONBLOCK.bits()).expect("flags are small");
    let file = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return refused(&format!("it cannot be opened ({error})")),
    };
    let found = file.metadata().map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    if !found.is_file() || found.uid() != geteuid().as_raw() {
        return refused("it does not belong to you");
    }
    if found.mode() & 0o077 != 0 {
        return refused("other users may read or write it");
    }
    match file.try_lock_shared() {
        Err(TryLockError::WouldBlock) => {}
        Ok(()) => return refused("the server that wrote it no longer runs"),
        Err(TryLockError::Error(error)) => return refused(&format!("it cannot be locked ({error})")),
    }
    let mut token = String::new();
    let read = file.take(TOKEN_BYTES_MAX).read_to_string(&mut token);
    read.map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    Ok(Some(Secret::new(token.trim().to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_server_on_this_machine_has_a_file() {
        let names = |server: &str| listeners_of(server).into_iter().map(name).collect::<Vec<_>>();
        assert_eq!(
            names("http://127.0.0.1:8080"),
            ["127.0.0.1:8080.token", "0.0.0.0:8080.token", "[::]:8080.token"]
        );
        assert_eq!(names("http://[::1]:8080/"), ["[::1]:8080.token", "[::]:8080.token"]);
        assert_eq!(names("https://localhost")[..2], ["127.0.0.1:443.token", "[::1]:443.token"]);
        for elsewhere in
            ["http://192.0.2.1:8080", "http://localhost.example:8080", "http://[2001:db8::1]", "x"]
        {
            assert_eq!(names(elsewhere), [""; 0], "{elsewhere}");
        }
    }

    /// Another user may listen on [::1]:8080 while the server listens on 127.0.0.1:8080.
    #[test]
    fn the_token_is_sent_to_the_listener_that_the_file_names() {
        let url = |server: &str, listener: &str| url_of(server, listener.parse().unwrap());
        assert_eq!(url("http://localhost:8080", "127.0.0.1:8080"), "http://127.0.0.1:8080");
        assert_eq!(url("http://localhost:8080", "0.0.0.0:8080"), "http://127.0.0.1:8080");
        assert_eq!(url("http://127.0.0.1:8080", "[::]:8080"), "http://[::1]:8080");
        assert_eq!(url("https://localhost:8080", "127.0.0.1:8080"), "https://localhost:8080");
    }
}
