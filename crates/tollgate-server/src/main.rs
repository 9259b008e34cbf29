//! `tollgate`: see [`tollgate_server::cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    tollgate_server::cli::run()
}
