//! The facts that the choice of a path depends on: GPU, driver, CPU, kind of mapping.

use std::fs;
use std::num::NonZeroU16;

use gdr_cuda::{DriverKind, Gpu};
use gdr_process::Inherited;
use rustix::thread::sched_getaffinity;

use crate::copier::cpu_pool::local_cpus;
use crate::mapping::Mapping;
use crate::plan::ProfileKey;

/// The default maximum number of threads per copy: four threads saturate PCIe Gen5 x16 with stores.
const MOST_THREADS: u16 = 4;

/// Returns the key of the profile for copies between this process and `mapping`, on `gpu`.
pub fn profile_key(gpu: &Gpu, mapping: &Mapping) -> ProfileKey {
    let driver = match gpu.driver().kind() {
        DriverKind::Simulated => Some("none".to_owned()),
        DriverKind::Cuda => driver_version(),
    };
    ProfileKey {
        gpu: gpu.info().name.clone(),
        driver: driver.unwrap_or_else(|| "unknown".to_owned()),
        cpu: own_cpu().to_owned(),
        path_class: format!("{}, {}", mapping.backend(), mapping.caching()),
    }
}

/// Returns the name of this machine's CPU. It is read only once, because the Linux kernel takes microseconds for each
/// CPU in `/proc/cpuinfo`.
fn own_cpu() -> &'static str {
    static NAME: Inherited<String> = Inherited::new();
    NAME.get_or_init(|| {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        cpu_name(&cpuinfo).unwrap_or_else(|| std::env::consts::ARCH.to_owned())
    })
}

/// Returns how many threads a copy to or from `gpu` may use by default: one for each CPU on the GPU's NUMA node that
/// this process may use, but at most 4.
pub fn default_threads(gpu: &Gpu) -> NonZeroU16 {
    // If the GPU's node is unknown, no CPU of the process is better than another.
    let cpus = local_cpus(gpu.info().bdf).or_else(|| sched_getaffinity(None).ok());
    let count = cpus.map_or(1, |cpus| cpus.count());
    let most = u16::try_from(count)
        .unwrap_or(MOST_THREADS)
        .min(MOST_THREADS);
    NonZeroU16::new(most).unwrap_or(NonZeroU16::MIN)
}

/// Returns the version of the loaded NVIDIA kernel driver, such as `580.142`.
pub fn driver_version() -> Option<String> {
    let text = fs::read_to_string("/sys/module/nvidia/version").ok();
    let version = text
        .map(|text| text.trim().to_owned())
        .filter(|text| !text.is_empty());
    version.or_else(|| {
        version_in(&fs::read_to_string("/proc/driver/nvidia/version").ok()?).map(str::to_owned)
    })
}

/// Returns the version in the text of `/proc/driver/nvidia/version`: the first word of the first line that looks like a
/// version.
fn version_in(text: &str) -> Option<&str> {
    let numbers =
        |word: &&str| word.contains('.') && word.split('.').all(|part| part.parse::<u32>().is_ok());
    text.lines().next()?.split_whitespace().find(numbers)
}

/// Returns the CPU's name in `/proc/cpuinfo`: the model on x86, the implementer and part on aarch64.
fn cpu_name(cpuinfo: &str) -> Option<String> {
    let field = |name: &str| {
        let mut lines = cpuinfo.lines().filter_map(|line| line.split_once(':'));
        let found = lines.find(|(key, _)| key.trim() == name);
        found.map(|(_, value)| value.trim().to_owned())
    };
    // On aarch64 the Linux kernel reports numbers instead of a name.
    field("model name").or_else(|| {
        let (implementer, part) = (field("CPU implementer")?, field("CPU part")?);
        Some(format!("implementer {implementer} part {part}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_driver_names_its_version_in_either_flavor() {
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.142  Release \
                    Build  (dvs-builder@U22)\nGCC version:  gcc version 12.2.0\n";
        assert_eq!(version_in(open), Some("580.142"));
        let closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19\n";
        assert_eq!(version_in(closed), Some("535.104.05"));
        assert_eq!(version_in("nothing of the kind\nGCC 12.2.0"), None);
    }

    #[test]
    fn a_cpu_is_named_on_either_architecture() {
        let x86 = "processor\t: 0\nmodel name\t: Intel(R) Xeon(R) Platinum 8480C\n";
        assert_eq!(cpu_name(x86).unwrap(), "Intel(R) Xeon(R) Platinum 8480C");
        let arm = "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n";
        assert_eq!(cpu_name(arm).unwrap(), "implementer 0x41 part 0xd4f");
        assert_eq!(cpu_name(""), None);
    }
}
