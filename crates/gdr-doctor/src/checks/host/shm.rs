use crate::checks::prelude::*;

/// The size in bytes that NCCL needs with many ranks on a node.
const ENOUGH: u64 = 512 << 20;

pub(super) const CHECK: Check = Check {
    id: CheckId("shm"),
    title: "/dev/shm is large enough for the processes of a job",
    why: "Processes of one job on one node exchange data through /dev/shm. Docker gives a \
          container 64 MiB, which a few ranks of NCCL use up: \"No space left on device\", or a \
          bus error.",
    inputs: "Size and free space of the file system at /dev/shm.",
    criteria: "pass: 512 MiB or more. warn: less in a container. info: less elsewhere. unknown: \
               not collected.",
    sources: &[
        "NCCL user guide, troubleshooting: shared memory",
        "https://github.com/stas00/ml-engineering",
    ],
    workloads: &[Workload::Nccl, Workload::Ucx, Workload::Nvshmem],
    scope: Scope::Node(run),
    ..super::CHECK
};

fn run(context: &Context<'_>) -> Judgement {
    let size = context.text(virtual_path::SHARED_MEMORY).and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("size "));
        line.and_then(|bytes| bytes.trim().parse::<u64>().ok())
            .ok_or(Absence::Missing)
    });
    let bytes = size.known("the size of /dev/shm")?;
    let has = match bytes >> 30 {
        0..=9 => format!("{} MiB", bytes >> 20),
        gib => format!("{gib} GiB"),
    };
    let inside = context.is_container();
    let finding = match (bytes >= ENOUGH, inside) {
        (true, _) => Finding::pass(format!("/dev/shm has {has}")),
        (false, true) => Finding::warn(format!(
            "/dev/shm has {has}, which is too little for a job with several processes"
        ))
        .fix(Fix::user(
            "Start the container with a larger /dev/shm",
            "docker run --shm-size 16g …   # Kubernetes: an emptyDir of medium Memory at /dev/shm",
        )),
        (false, false) => Finding::info(format!("/dev/shm has {has}")).fix(
            Fix::run("Enlarge /dev/shm", "mount -o remount,size=16g /dev/shm")
                .persistence(Persistence::UntilReboot)
                .risk(Risk::Low, "files in it use memory"),
        ),
    };
    Ok(finding.evidence(virtual_path::SHARED_MEMORY, format!("size {bytes}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::*;

    #[test]
    fn a_large_one_passes_and_a_small_one_is_a_warning_in_containers() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Pass]);
        let little =
            example::healthy().file(virtual_path::SHARED_MEMORY, "size 67108864\nfree 1\n");
        assert_eq!(verdict(&CHECK, &little), Info);
        assert_eq!(verdict(&CHECK, &little.file("/.dockerenv", "")), Warn);
    }
}
