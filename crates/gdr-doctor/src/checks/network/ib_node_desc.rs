use super::ports::Port;
use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    id: CheckId("ib.node_desc"),
    title: "the fabric knows the node by its name",
    why: "Subnet managers and tools (`ibhosts`, `iblinkinfo`, `ibdiagnet`) show a node by the \
          description of its device. With the text of the factory the node cannot be found in them.",
    inputs: "/sys/class/infiniband/*/node_desc; /proc/sys/kernel/hostname.",
    criteria: "pass: it has the host's name. info: another text. skip: no InfiniBand port is active. \
               unknown: not collected.",
    sources: &[
        "InfiniBand Architecture Specification 14.2.5.2: NodeDescription",
        "rdma-ndd(8) of rdma-core",
    ],
    scope: Scope::Port(Which::ActiveInfiniband, judge),
    ..super::CHECK
};

fn judge(context: &Context<'_>, port: &Port<'_>) -> Judgement {
    let device = port.device;
    let path = format!("/sys/class/infiniband/{device}/node_desc");
    let text = context.text(&path).known("its node description")?;
    let host = context
        .text("/proc/sys/kernel/hostname")
        .known("the host's name")?;
    let (text, name) = (
        text.trim(),
        host.trim().split('.').next().unwrap_or_default(),
    );
    let is_named = !name.is_empty()
        && text
            .to_ascii_lowercase()
            .contains(&name.to_ascii_lowercase());
    let finding = if is_named {
        Finding::pass(format!("the fabric knows it as `{text}`"))
    } else {
        Finding::info(format!("the fabric knows it as `{text}`, not as {name}")).fix(Fix::run(
            "Give it the host's name, which rdma-ndd does at every boot",
            format!("echo \"$(hostname -s) {device}\" > {path}"),
        ))
    };
    Ok(finding.evidence(path, text))
}

#[cfg(test)]
mod tests {
    use snapshot::assert_contains;

    use super::*;
    use crate::checks::fixture::*;

    #[test]
    fn the_text_of_the_factory_is_info() {
        let node = example::healthy();
        assert_eq!(verdict(&CHECK, &node), Pass);
        let path = "/sys/class/infiniband/mlx5_1/node_desc";
        let factory = node.file(path, "MT4129 ConnectX7   Mellanox Technologies\n");
        let found = judged(&CHECK, &factory, Info);
        assert_contains!(found.summary, "MT4129 ConnectX7");
        let unknown = example::healthy().without(path).not_collected(path);
        assert_eq!(verdict(&CHECK, &unknown), Unknown);
    }
}
