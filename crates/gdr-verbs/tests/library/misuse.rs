//! Calls in any order, with handles of destroyed objects and keys of deregistered regions.

use std::ptr::NonNull;

use gdr_verbs_sys::*;
use proptest::prelude::*;

use crate::side::*;

#[test]
fn a_handle_of_a_destroyed_object_is_refused() {
    let (a, b) = sides();
    let mut words = vec![0; 8];
    let region = a.register(&mut words);
    let verbs = library();
    // SAFETY: handles, which the library checks before it uses them.
    unsafe {
        assert_eq!(
            verbs.ibv_dealloc_pd(a.domain).unwrap_err().errno(),
            Errno::EBUSY
        );
        deregister(region);
        let again = verbs.ibv_dereg_mr(region.as_ptr());
        assert_eq!(again.unwrap_err().errno(), Errno::EINVAL);
        let (domain, pair, queue) = (a.domain, a.pair, a.queue);
        a.close();
        let refused = [
            verbs.ibv_destroy_qp(pair),
            verbs.ibv_destroy_cq(queue),
            verbs.ibv_dealloc_pd(domain),
        ];
        for refused in refused {
            assert_eq!(refused.unwrap_err().errno(), Errno::EINVAL);
        }
    }
    b.close();
}

#[test]
fn memory_that_is_not_mapped_or_not_writable_is_refused() {
    let (a, b) = sides();
    let read_only: &'static [u8] = b"text of the program";
    let bad = [
        (std::ptr::without_provenance_mut(0x1000), 64),
        (read_only.as_ptr().cast_mut().cast(), read_only.len()),
    ];
    for (address, len) in bad {
        // SAFETY: the library checks the memory.
        let refused = unsafe { library().reg_mr(a.domain, address, len, all_access()) };
        assert_eq!(refused.unwrap_err().errno(), Errno::EFAULT);
    }
    a.close();
    b.close();
}

#[test]
fn what_the_device_does_not_offer_is_refused_as_not_supported() {
    let side = Side::new(ibv_qp_type::IBV_QPT_RC);
    let mut words = vec![0_u64; 8];
    let local = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE;
    let unknown = local | ibv_access_flags(1 << 15);
    let (address, len) = (words.as_mut_ptr().cast(), size_of_val(&*words));
    // SAFETY: the words exist, and the registration fails.
    let refused = unsafe { library().reg_mr(side.domain, address, len, unknown) };
    assert_eq!(refused.unwrap_err().errno(), Errno::EINVAL);
    let wr = ibv_send_wr {
        opcode: ibv_wr_opcode::IBV_WR_TSO,
        ..Default::default()
    };
    assert_eq!(side.send(wr, &mut []).err(), Some(Errno::EOPNOTSUPP));
    let create = |flags| {
        use ibv_qp_init_attr_mask as Mask;
        let mut attr = ibv_qp_init_attr_ex {
            send_cq: side.queue,
            recv_cq: side.queue,
            pd: side.domain,
            qp_type: ibv_qp_type::IBV_QPT_UD,
            comp_mask: (Mask::IBV_QP_INIT_ATTR_PD | Mask::IBV_QP_INIT_ATTR_CREATE_FLAGS).0,
            create_flags: flags,
            ..Default::default()
        };
        // SAFETY: the objects are alive.
        unsafe { library().ibv_create_qp_ex(side.context, &mut attr) }
    };
    /// `IBV_QP_CREATE_BLOCK_SELF_MCAST_LB`.
    const BLOCK_LOOPBACK: u32 = 2;
    let refused = create(BLOCK_LOOPBACK).unwrap_err().errno();
    assert_eq!(refused, Errno::EOPNOTSUPP);
    let without_flags = create(0).unwrap();
    // SAFETY: the queue pair is alive.
    unsafe { library().ibv_destroy_qp(without_flags.as_ptr()) }.unwrap();
    side.close();
}

/// A call that a program may make next.
#[derive(Clone, Copy, Debug)]
enum Step {
    Write,
    Read,
    Receive,
    Send,
    Poll,
    Deregister,
    Error,
    Init,
}

fn steps() -> impl Strategy<Value = Vec<(Step, bool)>> {
    let step = prop_oneof![
        4 => Just(Step::Write),
        4 => Just(Step::Read),
        4 => Just(Step::Receive),
        4 => Just(Step::Send),
        8 => Just(Step::Poll),
        1 => Just(Step::Deregister),
        1 => Just(Step::Error),
        1 => Just(Step::Init),
    ];
    prop::collection::vec((step, any::<bool>()), 1..60)
}

/// The two sides, and a region of each while it is registered.
struct Program {
    sides: [Side; 2],
    regions: [Option<NonNull<ibv_mr>>; 2],
    /// Keys and addresses, which are kept after deregistration.
    last: [(ibv_sge, u32); 2],
}

impl Program {
    /// Performs a step; returns the maximum number of completions that it may generate.
    fn step(&mut self, step: Step, second: bool) -> usize {
        let (own, other) = if second { (1, 0) } else { (0, 1) };
        let side = &self.sides[own];
        let mut list = [self.last[own].0];
        let (to, rkey) = self.last[other];
        let mut wr = ibv_send_wr {
            send_flags: ibv_send_flags::IBV_SEND_SIGNALED.0,
            ..Default::default()
        };
        wr.wr.rdma.remote_addr = to.addr;
        wr.wr.rdma.rkey = rkey;
        let opcode = match step {
            Step::Write => ibv_wr_opcode::IBV_WR_RDMA_WRITE,
            Step::Read => ibv_wr_opcode::IBV_WR_RDMA_READ,
            Step::Send => ibv_wr_opcode::IBV_WR_SEND,
            Step::Receive => return usize::from(side.receive(0, &mut list).is_ok()),
            Step::Poll => {
                side.poll();
                return 0;
            }
            Step::Deregister => {
                self.regions[own].take().into_iter().for_each(deregister);
                return 0;
            }
            Step::Error => {
                side.to_error().unwrap();
                assert_eq!(side.attributes().qp_state, ibv_qp_state::IBV_QPS_ERR);
                return 0;
            }
            Step::Init => {
                // Refused in every state that the queue pair can have.
                assert_eq!(side.to_init().unwrap_err().errno(), Errno::EINVAL);
                return 0;
            }
        };
        usize::from(side.send(ibv_send_wr { opcode, ..wr }, &mut list).is_ok())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever a program does, it gets at most one completion for each posted request, and the objects that it
    /// destroys, even with requests in flight, no longer exist.
    #[test]
    fn no_sequence_of_calls_breaks_the_library(steps in steps()) {
        let (a, b) = sides();
        let mut words = [[1_u64; 512], [2_u64; 512]];
        let [near, far] = &mut words;
        let regions = [a.register(near), b.register(far)];
        let last = regions.map(|region| {
            // SAFETY: the region is alive.
            let rkey = unsafe { region.as_ref() }.rkey;
            (segment(region, 0, 4096), rkey)
        });
        let mut program = Program { sides: [a, b], regions: regions.map(Some), last };
        let mut posted = [0; 2];
        for (step, second) in steps {
            posted[usize::from(second)] += program.step(step, second);
        }
        for (side, posted) in program.sides.iter().zip(posted) {
            let mut seen = 0;
            while side.poll().is_some() {
                seen += 1;
            }
            prop_assert!(seen <= posted);
        }
        let Program { sides, regions, .. } = program;
        // One queue pair after the other, with requests in flight.
        for (side, region) in sides.into_iter().zip(regions) {
            region.into_iter().for_each(deregister);
            side.close();
        }
    }
}
