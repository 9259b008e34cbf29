//! The logs: files or standard input, plain or compressed, read once or several times.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::bufread::MultiGzDecoder;

mod zstd;

use zstd::ZstdReader;

/// The most logs of one run. Each has a thread and a file descriptor of its own.
const LOGS_MAX: usize = 256;

/// Bytes that are read, and decompressed, at once.
const BUFFER_BYTES: usize = 256 * 1024;

const STDIN: &str = "-";

/// A log.
#[derive(Debug)]
pub(super) struct Input {
    /// The name in messages.
    pub(super) name: String,
    source: Source,
    /// The size in bytes, as stored; 0 if unknown.
    pub(super) stored_bytes: u64,
}

#[derive(Debug)]
enum Source {
    File(PathBuf),
    Stdin,
    /// Standard input, copied to a file without a name.
    Spooled(File),
}

impl Input {
    /// Finds the logs. With `several_passes`, standard input is copied to a temporary file.
    ///
    /// # Errors
    /// A sentence that says what to do.
    pub(super) fn find(paths: &[PathBuf], several_passes: bool) -> Result<Vec<Self>, String> {
        let stdin = [PathBuf::from(STDIN)];
        let paths = if paths.is_empty() { &stdin } else { paths };
        if paths.len() > LOGS_MAX {
            return Err(format!(
                "{} logs are more than {LOGS_MAX}, the most of one run; pass those of one server together: \
                 cat … | tollgate simulate",
                paths.len()
            ));
        }
        if paths.iter().filter(|path| is_stdin(path)).count() > 1 {
            return Err("- names standard input twice; name it once".into());
        }
        paths.iter().map(|path| Self::new(path, several_passes)).collect()
    }

    fn new(path: &Path, several_passes: bool) -> Result<Self, String> {
        let name = if is_stdin(path) { "standard input".into() } else { path.display().to_string() };
        if is_stdin(path) {
            let source = if several_passes { Source::Spooled(spool()?) } else { Source::Stdin };
            return Ok(Self { name, source, stored_bytes: 0 });
        }
        let metadata = fs::metadata(path).map_err(|error| unreadable(&name, &error))?;
        if metadata.is_dir() {
            return Err(format!("{name} is a directory; name the logs in it: {name}/*"));
        }
        Ok(Self { name, source: Source::File(path.into()), stored_bytes: metadata.len() })
    }

    /// Opens the log at its beginning. `bytes_read` counts what is read, as stored.
    ///
    /// # Errors
    /// A sentence that says what to do.
    pub(super) fn open(&self, bytes_read: &Arc<AtomicU64>) -> Result<Box<dyn BufRead + Send>, String> {
        let failed = |error: io::Error| unreadable(&self.name, &error);
        let stored: Box<dyn Read + Send> = match &self.source {
            Source::File(path) => Box::new(File::open(path).map_err(failed)?),
            Source::Stdin => Box::new(io::stdin()),
            Source::Spooled(file) => {
                let mut file = file.try_clone().map_err(failed)?;
                file.seek(SeekFrom::Start(0)).map_err(failed)?;
                Box::new(file)
            }
        };
        let counted = Counted { stored, bytes_read: Arc::clone(bytes_read) };
        decompressed(BufReader::with_capacity(BUFFER_BYTES, counted)).map_err(failed)
    }
}

fn is_stdin(path: &Path) -> bool {
    path == Path::new(STDIN)
}

fn unreadable(name: &str, error: &io::Error) -> String {
    format!("cannot read {name}: {error}; check its path and permissions")
}

/// Decompresses by what the file begins with, whatever its name.
fn decompressed(mut stored: BufReader<Counted>) -> io::Result<Box<dyn BufRead + Send>> {
    Ok(match stored.fill_buf()? {
        [0x1f, 0x8b, ..] => Box::new(BufReader::with_capacity(BUFFER_BYTES, MultiGzDecoder::new(stored))),
        [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => {
            Box::new(BufReader::with_capacity(BUFFER_BYTES, ZstdReader::new(stored)))
        }
        _ => Box::new(stored),
    })
}

/// Copies standard input to a temporary file, which has no name once this returns.
fn spool() -> Result<File, String> {
    let failed = |error: io::Error| {
        format!("cannot copy standard input to a temporary file: {error}; set TMPDIR, or name a file")
    };
    let path = std::env::temp_dir().join(format!("tollgate-simulate-{}", std::process::id()));
    let mut options = OpenOptions::new();
    let mut file = options.read(true).write(true).create_new(true).open(&path).map_err(failed)?;
    fs::remove_file(&path).map_err(failed)?;
    io::copy(&mut io::stdin().lock(), &mut file).map_err(failed)?;
    Ok(file)
}

/// Counts the bytes that are read.
struct Counted {
    stored: Box<dyn Read + Send>,
    bytes_read: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.stored.read(buffer)?;
        self.bytes_read.fetch_add(u64::try_from(count).unwrap_or(0), Ordering::Relaxed);
        Ok(count)
    }
}
