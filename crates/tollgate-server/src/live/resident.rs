//! The memory of this process, and its bound.

use std::fs;

use super::snapshot::MemoryUse;

/// The resident memory and its bound. `None` where the kernel does not tell, as outside Linux.
pub(super) fn memory_use() -> Option<MemoryUse> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let resident = kibibytes(&status, "VmRSS:")?;
    let max = group_bound().or_else(|| kibibytes(&fs::read_to_string("/proc/meminfo").ok()?, "MemTotal:"))?;
    Some(MemoryUse { resident, max })
}

/// The bound of the process's control group (version 2), if it has one.
fn group_bound() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    fs::read_to_string(format!("/sys/fs/cgroup/{group}/memory.max")).ok()?.trim().parse().ok()
}

/// A line such as `VmRSS:   1234 kB`, in bytes.
fn kibibytes(text: &str, name: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(name))?;
    value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1_024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_resident_memory_is_below_its_bound() {
        let MemoryUse { resident, max } = memory_use().unwrap();
        assert!((1..max).contains(&resident), "{resident} of {max}");
    }
}
