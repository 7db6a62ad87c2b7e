use super::ib_sm::lid;
use super::ports::Port;
use crate::checks::prelude::*;

/// The permissive LID, which is not an address.
const PERMISSIVE: u32 = 0xffff;

pub(super) const CHECK: Check = Check {
    id: CheckId("ib.lid"),
    title: "InfiniBand ports have an address (LID)",
    why: "A subnet manager assigns a local identifier (LID) to every InfiniBand port. Without one, \
          nothing can be sent to the port.",
    inputs: "/sys/class/infiniband/*/ports/*/lid of InfiniBand ports whose link is up.",
    criteria: "pass: a LID. fail: 0 or 0xffff. skip: no InfiniBand port with a link. unknown: not \
               collected.",
    sources: &["InfiniBand Architecture Specification 4.1.3 and 14.2.5.6: LID"],
    symptom_of: &["ib.sm"],
    scope: Scope::Port(Which::LinkedInfiniband, judge),
    ..super::CHECK
};

fn judge(context: &Context<'_>, port: &Port<'_>) -> Judgement {
    let path = format!("{}/lid", port.path);
    let text = context.text(&path);
    let lid = text.and_then(|text| lid(&text).ok_or(Absence::Missing));
    Ok(match lid.known("its LID")? {
        none @ (0 | PERMISSIVE) => Finding::fail("it has no LID: nothing can be sent to it")
        .evidence(path, format!("{none:#x}"))
        .fix(Fix::manual(
            "Make the subnet manager assign a LID",
            "look for the port's GUID in the subnet manager's log; a partition or a full table may \
             exclude the port",
        )),
        lid => Finding::pass(format!("it has LID {lid}"))
            .evidence(path, format!("{lid:#x}")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::*;

    const PATH: &str = "/sys/class/infiniband/mlx5_1/ports/1/lid";

    #[test]
    fn a_lid_passes_and_none_fails() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Pass; 8]);
        for none in ["0x0\n", "0xffff\n"] {
            assert_eq!(verdict(&CHECK, &example::healthy().file(PATH, none)), Fail);
        }
    }
}
