//! InfiniBand links, on which a subnet manager numbers the ports.

use fake_ibverbs::DeviceSpec;
use gdr_rdma::{Endpoint, Error, SendRequest, VerbsError, WrId};

use crate::fixture::*;

fn infiniband(name: &str, lid: u16) -> DeviceSpec {
    DeviceSpec::infiniband(name, lid)
}

#[test]
fn ports_of_one_subnet_reach_each_other_by_lid() {
    let fake = clean_fake();
    let (a, b) = connected(&fake, &infiniband("ib_a", 5), &infiniband("ib_b", 6));
    assert_eq!(a.pair.endpoint().lid.unwrap().get(), 5);
    let (source, target) = (a.memory(64), b.memory(64));
    let sent = fill(&source, 1);
    let write =
        SendRequest::write(WrId(1), target.remote().at(0)).segment(source.segment(0, 64).unwrap());
    a.pair.post_send(write).unwrap();
    a.done();
    let mut seen = [0; 64];
    target.buffer().read_at(0, &mut seen).unwrap();
    assert_eq!(seen[..], sent[..]);
}

#[test]
fn another_subnet_is_reached_by_gid() {
    let fake = clean_fake();
    let mut far = infiniband("ib_far", 6);
    // A different subnet prefix; only the subnet manager would know the router's LID.
    far.ports[0].gids[0].gid[..8].copy_from_slice(&[0xfe, 0xc0, 0, 0, 0, 0, 0, 7]);
    let (a, b) = connected(&fake, &infiniband("ib_near", 5), &far);
    let (source, target) = (a.memory(8), b.memory(8));
    let write =
        SendRequest::write(WrId(1), target.remote().at(0)).segment(source.segment(0, 8).unwrap());
    a.pair.post_send(write).unwrap();
    a.done();
}

#[test]
fn a_peer_without_lid_is_refused_by_name() {
    let fake = clean_fake();
    let a = side(&fake, &infiniband("ib_c", 5));
    let b = side(&fake, &infiniband("ib_d", 6));
    let nowhere = Endpoint {
        lid: None,
        ..b.pair.endpoint()
    };
    let refused = a.pair.connect(&nowhere, &options()).unwrap_err();
    assert!(
        matches!(refused, Error::Verbs(VerbsError::NoLid { .. })),
        "{refused}"
    );
}
