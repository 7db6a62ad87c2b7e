//! The checks there are.

use gdr_cuda::MemoryKind;

use super::outcome::Outcome;
use super::{
    Check, Effort, Run, basic, data, fork, leakage, lifetime, refusal, threads, visibility,
};
use crate::bench_target::BenchTarget;
use crate::error::{Result, SettingsError};

type SiteCheck = (&'static str, fn(&BenchTarget) -> Outcome, &'static str);
type MemoryCheck = (
    &'static str,
    fn(&BenchTarget, MemoryKind) -> Outcome,
    &'static str,
);

/// Checks of each kind of memory.
const OF_MEMORY: &[MemoryCheck] = &[
    (
        "basic",
        basic::pin_and_unpin,
        "Memory can be pinned, mapped, unmapped and unpinned.",
    ),
    (
        "basic_large_buffer_mapping",
        basic::large,
        "64 MiB are mapped whole.",
    ),
    (
        "basic_small_buffers_mapping",
        basic::small_buffers,
        "Many 4 KiB buffers are mapped at once, each to its own memory.",
    ),
    (
        "basic_unaligned_mapping",
        basic::middle,
        "Pointers into the middle of an allocation, unaligned and of odd length, are mapped.",
    ),
    (
        "basic_child_thread_pins_buffer",
        threads::child_thread,
        "Pinning, mapping, copying, unmapping and unpinning may each be on another thread.",
    ),
    (
        "data_validation",
        data::validation,
        "Copies shifted by 0 to 1023 bytes on either side move the right bytes and no others.",
    ),
    (
        "data_kernel_sees_cpu_writes",
        data::kernel_sees_cpu,
        "A later kernel and cuMemcpy see what the CPU wrote.",
    ),
    (
        "data_cpu_sees_kernel_writes",
        data::cpu_sees_kernel,
        "The CPU reads what a kernel and a memset wrote.",
    ),
    (
        "data_neighbours_untouched",
        data::neighbours,
        "Writes reach neither the bytes nor the buffers beside them, nor past the end.",
    ),
    (
        "data_typed_flags",
        data::typed_flags,
        "Words of 1, 2, 4 and 8 bytes are stored and read whole.",
    ),
    (
        "data_threads",
        data::chunks,
        "Four threads write and read parts of one mapping at once.",
    ),
    (
        "invalidation_access_after_free",
        lifetime::access_after_free,
        "Freed memory stays readable and writable through its mapping.",
    ),
    (
        "invalidation_access_after_gdr_close",
        lifetime::access_after_close,
        "A mapping outlives its context, and its addresses are unmapped once both are gone.",
    ),
    (
        "invalidation_fork_access_after_free",
        fork::access_after_free,
        "Memory that is freed after a fork shows its bytes to the parent's mapping only.",
    ),
    (
        "invalidation_fork_child_gdr_map_parent",
        fork::child_maps_parent,
        "A forked child cannot map what its parent pinned.",
    ),
    (
        "invalidation_fork_map_and_free",
        fork::map_and_free,
        "A forked child that gives back its copies leaves the parent's mapping alone.",
    ),
    (
        "invalidation_two_mappings",
        lifetime::two_mappings,
        "Freeing one buffer leaves its neighbour's mapping as it is.",
    ),
    (
        "invalidation_any_order",
        lifetime::any_order,
        "Buffer, pin and mapping may be dropped in any order.",
    ),
    (
        "invalidation_fork_after_gdr_map",
        fork::child_is_refused,
        "A forked child can use neither mapping nor pin, and leaves the parent's alone.",
    ),
    (
        "refusal_freed_pointer",
        refusal::freed,
        "A freed pointer is refused by name.",
    ),
    (
        "refusal_past_allocation",
        refusal::past_the_end,
        "A range past the end of its allocation is refused.",
    ),
    (
        "leakage_pin_map_rounds",
        leakage::thousand_rounds,
        "1,000 rounds leave descriptors, mappings and BAR1 where they were.",
    ),
];

/// Checks for kinds of memory that have physical memory of their own. Pools keep theirs.
const OF_OWN_MEMORY: &[MemoryCheck] = &[
    (
        "invalidation_freed_memory_is_not_reused",
        lifetime::freed_memory_is_not_reused,
        "No new allocation gets memory that a mapping still shows.",
    ),
    (
        "leakage_gpu_memory",
        leakage::gpu_memory,
        "GPU memory that was pinned and freed is free again once it is unpinned.",
    ),
];

/// Checks of the GPU or the backend as a whole.
const OF_SITE: &[SiteCheck] = &[
    (
        "attributes_sanity",
        basic::attributes,
        "The backend answers for its own properties.",
    ),
    (
        "basic_thread_without_context",
        threads::without_context,
        "A thread without a current CUDA context can do everything.",
    ),
    (
        "basic_every_gpu",
        basic::every_gpu,
        "Every visible GPU can be mapped, each to its own.",
    ),
    (
        "basic_every_copy_routine",
        basic::every_routine,
        "Every copy routine that this CPU can run moves the right bytes and no others.",
    ),
    (
        "basic_with_tokens",
        refusal::tokens,
        "Memory is pinned with CUDA's peer-to-peer tokens.",
    ),
    (
        "data_validation_mix_mappings_cumemalloc",
        lifetime::mixed_caching,
        "Write-combined and cached mappings of one buffer show the same memory.",
    ),
    (
        "invalidation_fork_child_gdr_pin_parent_with_tokens",
        fork::child_pins_parent,
        "A forked child cannot pin its parent's memory.",
    ),
    (
        "data_small_sizes",
        data::small_sizes,
        "Every small size at every place in a cache line is copied exactly.",
    ),
    (
        "data_two_pins_of_one_buffer",
        lifetime::two_pins,
        "Two mappings of one buffer show the same memory.",
    ),
    (
        "mapping_once_at_a_time",
        lifetime::one_mapping_at_a_time,
        "A second mapping of a pin is refused; a new one after unmapping is not.",
    ),
    (
        "mapping_shorter_than_pin",
        lifetime::partial_mapping,
        "A short mapping shows the start and no more; one longer than the pin is refused.",
    ),
    (
        "mapping_types",
        lifetime::other_caching,
        "Each type of mapping is made as requested or refused by name.",
    ),
    (
        "visibility_running_kernel_sees_flag",
        visibility::running_kernel_sees_flag,
        "A kernel that is running already sees a flag of the CPU and answers.",
    ),
    (
        "visibility_data_before_flag",
        visibility::data_before_flag,
        "A kernel that sees the CPU's flag sees the data written ahead of it.",
    ),
    (
        "visibility_flag_before_data",
        visibility::flag_before_data,
        "The CPU that sees a kernel's flag sees the data written ahead of it.",
    ),
    (
        "visibility_fresh_reads",
        visibility::fresh_reads,
        "Reads of a line that a kernel rewrites 10,000 times never go back in time.",
    ),
    (
        "visibility_hung_kernel_is_stopped",
        visibility::hung_kernel_is_stopped,
        "A kernel that waits for the CPU without success can be ended.",
    ),
    (
        "refusal_managed_memory",
        refusal::managed,
        "Managed memory is refused with the reason.",
    ),
    (
        "refusal_host_memory",
        refusal::host,
        "Host memory is refused with the reason.",
    ),
    (
        "refusal_zero_length",
        refusal::zero_length,
        "A pin of no bytes is refused.",
    ),
    (
        "refusal_backend_name",
        refusal::backend_name,
        "An unknown backend name is refused with the known ones.",
    ),
    (
        "refusal_absent_backend",
        refusal::absent_backend,
        "A backend that this machine lacks is refused with the reason.",
    ),
    (
        "leakage_refusals",
        leakage::refusals,
        "Refused calls leave nothing behind.",
    ),
    (
        "leakage_concurrent_rounds",
        threads::concurrent_rounds,
        "8 threads that pin, map, copy and unmap at once keep to their own memory and leave \
         nothing behind.",
    ),
];

/// Checks of the kinds of memory that GDRCopy checks.
const OF_GDRCOPYS_MEMORY: [MemoryCheck; 3] = [
    (
        "basic_v2_forcepci",
        basic::force_pcie,
        "A mapping forced onto PCIe shows the same memory.",
    ),
    (
        "invalidation_unix_sock_shared_fd_gdr_map",
        refusal::shared_descriptor,
        "Another process cannot map by a descriptor that it was given.",
    ),
    (
        "invalidation_unix_sock_shared_fd_gdr_pin_buffer",
        refusal::shared_descriptor,
        "Another process cannot pin by a descriptor that it was given.",
    ),
];

const PINS_AND_FORK: MemoryCheck = (
    "leakage_pin_pages_fork",
    leakage::pins_and_fork,
    "A child of fork keeps no memory pinned in the module.",
);

/// Names of GDRCopy's tests whose checks have a different name here.
const ALSO_NAMED: [(&str, &str); 5] = [
    ("basic_v2_cumemalloc", "basic_cumemalloc"),
    ("basic_v2_vmmalloc", "basic_vmmalloc"),
    (
        "data_validation_v2_cumemalloc",
        "data_validation_cumemalloc",
    ),
    (
        "data_validation_v2_forcepci_cumemalloc",
        "basic_v2_forcepci_cumemalloc",
    ),
    ("data_validation_v2_vmmalloc", "data_validation_vmmalloc"),
];

const EXTENDED_OF_MEMORY: MemoryCheck = (
    "leakage_pin_map_many_rounds",
    leakage::ten_thousand_rounds,
    "10,000 rounds leave descriptors, mappings and BAR1 where they were.",
);

const EXTENDED_OF_SITE: [SiteCheck; 2] = [
    (
        "basic_several_gib_mapping",
        basic::several_gib,
        "An allocation of 5 GiB is mapped whole.",
    ),
    (
        "leakage_concurrent_many_rounds",
        threads::many_concurrent_rounds,
        "8 threads of 10,000 rounds keep to their own memory and leave nothing behind.",
    ),
];

/// Returns the suffix of a check's name for a kind of memory: GDRCopy's suffix, if it has one.
const fn suffix(kind: MemoryKind) -> &'static str {
    match kind {
        MemoryKind::Plain => "cumemalloc",
        MemoryKind::VmmPosixFd => "vmmalloc",
        MemoryKind::Vmm => "vmmalloc_nohandle",
        MemoryKind::Pool => "poolalloc",
        _ => "other",
    }
}

fn of_memory(&(name, run, proves): &MemoryCheck, kind: MemoryKind, effort: Effort) -> Check {
    let name = format!("{name}_{}", suffix(kind));
    Check {
        name,
        proves,
        effort,
        run: Run::Memory(run, kind),
    }
}

fn of_site(&(name, run, proves): &SiteCheck, effort: Effort) -> Check {
    Check {
        name: name.to_owned(),
        proves,
        effort,
        run: Run::Target(run),
    }
}

/// Returns every check: the ordinary ones in alphabetical order, then an extended run's.
pub fn all() -> Vec<Check> {
    const OWN: [MemoryKind; 3] = [MemoryKind::Plain, MemoryKind::VmmPosixFd, MemoryKind::Vmm];
    let mut checks: Vec<Check> = OF_SITE.iter().map(|c| of_site(c, Effort::Normal)).collect();
    for check in OF_MEMORY {
        checks.extend(MemoryKind::DEVICE.map(|kind| of_memory(check, kind, Effort::Normal)));
    }
    for check in OF_OWN_MEMORY {
        checks.extend(OWN.map(|kind| of_memory(check, kind, Effort::Normal)));
    }
    for check in &OF_GDRCOPYS_MEMORY {
        checks.extend(
            [MemoryKind::Plain, MemoryKind::VmmPosixFd]
                .map(|kind| of_memory(check, kind, Effort::Normal)),
        );
    }
    checks.extend(
        MemoryKind::DEVICE.map(|kind| of_memory(&EXTENDED_OF_MEMORY, kind, Effort::Extended)),
    );
    checks.push(of_memory(
        &PINS_AND_FORK,
        MemoryKind::Plain,
        Effort::Extended,
    ));
    checks.extend(
        EXTENDED_OF_SITE
            .iter()
            .map(|check| of_site(check, Effort::Extended)),
    );
    checks.sort_by(|a, b| (a.is_extended(), &a.name).cmp(&(b.is_extended(), &b.name)));
    checks
}

/// Returns the name with the longest common prefix with `name`, if the prefix is longer than the first word.
fn nearest<'a>(all: &'a [Check], name: &str) -> Option<&'a str> {
    let same = |check: &Check| {
        check
            .name
            .bytes()
            .zip(name.bytes())
            .take_while(|(a, b)| a == b)
            .count()
    };
    let nearest = all
        .iter()
        .max_by_key(|check| (same(check), std::cmp::Reverse(&check.name)))?;
    let word = nearest
        .name
        .find('_')
        .map_or(nearest.name.len(), |underscore| underscore + 1);
    (same(nearest) > word).then_some(nearest.name())
}

/// Returns the checks with these names, in the order given. A name without a suffix for the kind of memory selects the
/// checks of every kind. The names of GDRCopy's tests are known.
///
/// # Errors
/// [`crate::Error::Settings`] for an unknown name, with the nearest known one.
pub fn named<S: AsRef<str>>(names: &[S]) -> Result<Vec<Check>> {
    let all = all();
    let mut found = Vec::new();
    for name in names.iter().map(AsRef::as_ref) {
        let of_gdrcopy = ALSO_NAMED.iter().find(|(also, _)| *also == name);
        let own = of_gdrcopy.map_or(name, |(_, own)| own);
        let exact = all.iter().filter(|check| check.name == own);
        let of_kind = |check: &&Check| match check.run {
            Run::Memory(_, kind) => {
                check.name.strip_suffix(suffix(kind)) == Some(&format!("{own}_"))
            }
            Run::Target(_) => false,
        };
        let before = found.len();
        found.extend(exact.cloned());
        if found.len() == before {
            found.extend(all.iter().filter(of_kind).cloned());
        }
        if found.len() == before {
            return Err(SettingsError::NoSuchCheck {
                name: name.to_owned(),
                nearest: nearest(&all, name).map(Into::into),
            }
            .into());
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_are_unique_and_every_check_says_what_it_proves() {
        let all = all();
        let names: HashSet<_> = all.iter().map(|check| check.name().to_owned()).collect();
        assert_eq!(names.len(), all.len());
        for check in &all {
            assert!(check.proves().ends_with('.'), "{}", check.name());
            assert!(!check.name().ends_with("_other"), "{}", check.name());
        }
    }

    /// The tests of GDRCopy 2.6, `tests/sanity.cpp`.
    const OF_GDRCOPY: &str = "basic_cumemalloc basic_v2_cumemalloc basic_v2_forcepci_cumemalloc \
        basic_vmmalloc basic_v2_vmmalloc basic_v2_forcepci_vmmalloc basic_with_tokens \
        basic_unaligned_mapping basic_small_buffers_mapping data_validation_cumemalloc \
        data_validation_v2_cumemalloc data_validation_v2_forcepci_cumemalloc \
        data_validation_vmmalloc data_validation_mix_mappings_cumemalloc \
        invalidation_access_after_gdr_close_cumemalloc \
        invalidation_access_after_gdr_close_vmmalloc \
        invalidation_access_after_free_cumemalloc invalidation_access_after_free_vmmalloc \
        invalidation_two_mappings_cumemalloc invalidation_two_mappings_vmmalloc \
        invalidation_fork_access_after_free_cumemalloc \
        invalidation_fork_access_after_free_vmmalloc \
        invalidation_fork_after_gdr_map_cumemalloc invalidation_fork_after_gdr_map_vmmalloc \
        invalidation_fork_child_gdr_map_parent_cumemalloc \
        invalidation_fork_child_gdr_map_parent_vmmalloc \
        invalidation_fork_map_and_free_cumemalloc invalidation_fork_map_and_free_vmmalloc \
        invalidation_unix_sock_shared_fd_gdr_pin_buffer_cumemalloc \
        invalidation_unix_sock_shared_fd_gdr_pin_buffer_vmmalloc \
        invalidation_unix_sock_shared_fd_gdr_map_cumemalloc \
        invalidation_unix_sock_shared_fd_gdr_map_vmmalloc \
        invalidation_fork_child_gdr_pin_parent_with_tokens \
        basic_child_thread_pins_buffer_cumemalloc basic_child_thread_pins_buffer_vmmalloc \
        leakage_pin_pages_fork_cumemalloc attributes_sanity";

    #[test]
    fn every_test_of_gdrcopy_is_found_by_its_name() {
        let names: Vec<_> = OF_GDRCOPY.split_whitespace().collect();
        assert_eq!(names.len(), 37);
        for name in names {
            assert!(!named(&[name]).unwrap().is_empty(), "{name}");
        }
        let kinds = named(&["basic_small_buffers_mapping"]).unwrap();
        assert_eq!(kinds.len(), MemoryKind::DEVICE.len());
        // The first word of several checks does not name a check.
        assert!(named(&["leakage"]).is_err());
        assert_eq!(named(&["basic"]).unwrap().len(), MemoryKind::DEVICE.len());
    }

    #[test]
    fn checks_are_found_by_name_in_the_order_asked() {
        let found = named(&["data_small_sizes", "attributes_sanity"]).unwrap();
        let names: Vec<_> = found.iter().map(Check::name).collect();
        assert_eq!(names, ["data_small_sizes", "attributes_sanity"]);
        let error = named(&["data_small_size"]).unwrap_err().to_string();
        assert!(
            error.contains("did you mean `data_small_sizes`?"),
            "{error}"
        );
    }
}
