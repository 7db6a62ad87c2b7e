//! Many random invalid packets in a row.

use gdr_roce::wire::{Aeth, AtomicEth, Opcode, Reth, Syndrome};
use gdr_roce::{AtomicOp, Msn, Operation, RecvRequest, Remote, Rkey, Segment, WrId};
use proptest::prelude::*;

use super::target::{LEN, MTU, SECRET, Target, headers, seal};
use crate::fixture::{BASE, Settings};

/// Returns a strategy for random packets. Each field is often valid, so that packets pass the first checks.
fn packet() -> impl Strategy<Value = Vec<u8>> {
    let open = Target::new().open.1;
    let readable = Target::new().readable.1;
    let rkey = prop_oneof![4 => Just(open), 1 => Just(readable), 1 => any::<u32>().prop_map(Rkey)];
    let addr = prop_oneof![
        4 => (0..LEN as u64).prop_map(|at| BASE + at),
        1 => any::<u64>(),
        1 => (0..64u64).prop_map(|at| BASE + LEN as u64 - 32 + at),
    ];
    let len = prop_oneof![3 => 0..64usize, 2 => Just(MTU), 1 => Just(MTU + 4)];
    let dma = prop_oneof![3 => Just(None), 1 => (0..LEN as u32).prop_map(Some), 1 => any::<u32>().prop_map(Some)];
    let psn = prop_oneof![6 => 0..6u32, 1 => any::<u32>()];
    (
        0..Opcode::ALL.len(),
        any::<bool>(),
        psn,
        rkey,
        addr,
        len,
        dma,
        any::<u8>(),
    )
        .prop_map(|(opcode, mine, psn, rkey, addr, len, dma, byte)| {
            let opcode = Opcode::ALL[opcode];
            let mut headers = headers(opcode, psn);
            if mine {
                headers.bth.psn = Settings::default().psns[1].wrapping_add(psn);
            }
            let dma_len = dma.unwrap_or(len as u32);
            headers.reth = Some(Reth {
                addr,
                rkey,
                dma_len,
            });
            headers.atomic = Some(AtomicEth {
                addr,
                rkey,
                swap_or_add: 1,
                compare: 2,
            });
            headers.aeth = Some(Aeth {
                syndrome: Syndrome::from_byte(byte),
                msn: Msn::new(1),
            });
            seal(
                &headers,
                &vec![byte; if opcode.has_payload() { len } else { 0 }],
            )
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_sequence_of_packets_writes_read_only_memory(
        packets in proptest::collection::vec(packet(), 1..60),
    ) {
        let mut target = Target::new();
        let remote = Remote { rkey: Rkey(1), addr: 0 };
        target.post(Operation::Write { remote, immediate: None }, 5000);
        target.post(Operation::Read { remote }, 5000);
        let op = AtomicOp::FetchAdd { add: 1 };
        target.post(Operation::Atomic { remote, op }, 8);
        let lkey = target.open.0;
        let segments = [Segment { lkey, addr: BASE, len: 3000 }];
        for id in 0..3 {
            target.qp.post_recv(&RecvRequest { id: WrId(id), segments: &segments }).expect("room");
        }
        let mut completions = 0;
        for packet in &packets {
            target.receive(packet);
            for _ in 0..8 {
                target.poll();
            }
            completions += std::iter::from_fn(|| target.qp.poll_completion()).count();
        }
        target.qp.to_error();
        completions += std::iter::from_fn(|| target.qp.poll_completion()).count();
        prop_assert_eq!(completions, 6, "each request completes once");
        let readable = target.memory.bytes(target.readable.0).expect("registered");
        prop_assert!(readable.iter().all(|byte| *byte == SECRET));
    }
}
