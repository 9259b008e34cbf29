//! `tollgate`: see [`tollgate_server::cli`].

use std::process::ExitCode;

/// Calls over gRPC allocate often: the system's allocator took a seventh of their time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    tollgate_server::cli::run()
}
