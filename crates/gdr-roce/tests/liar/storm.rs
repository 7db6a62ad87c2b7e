//! Lies by chance, many in a row.

use gdr_roce::wire::{Aeth, AtomicEth, Opcode, Reth, Syndrome};
use gdr_roce::{AtomicOp, Msn, Operation, RecvRequest, Remote, Rkey, Segment, WrId};
use proptest::prelude::*;

use crate::fixture::{BASE, Settings};
use crate::victim::{LEN, MTU, SECRET, Victim, headers, seal};

/// Half-true packets: every field is right often enough that lies of all kinds get far.
fn lie() -> impl Strategy<Value = Vec<u8>> {
    let open = Victim::new().open.1;
    let readable = Victim::new().readable.1;
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
    fn no_run_of_lies_reaches_memory_that_is_not_open(
        lies in proptest::collection::vec(lie(), 1..60),
    ) {
        let mut victim = Victim::new();
        let remote = Remote { rkey: Rkey(1), addr: 0 };
        victim.post(Operation::Write { remote, immediate: None }, 5000);
        victim.post(Operation::Read { remote }, 5000);
        let op = AtomicOp::FetchAdd { add: 1 };
        victim.post(Operation::Atomic { remote, op }, 8);
        let lkey = victim.open.0;
        let segments = [Segment { lkey, addr: BASE, len: 3000 }];
        for id in 0..3 {
            victim.qp.post_recv(&RecvRequest { id: WrId(id), segments: &segments }).expect("room");
        }
        let mut completions = 0;
        for lie in &lies {
            victim.hear(lie);
            for _ in 0..8 {
                victim.answer();
            }
            completions += std::iter::from_fn(|| victim.qp.poll_completion()).count();
        }
        victim.qp.to_error();
        completions += std::iter::from_fn(|| victim.qp.poll_completion()).count();
        prop_assert_eq!(completions, 6, "each request ends once");
        let readable = victim.memory.bytes(victim.readable.0).expect("registered");
        prop_assert!(readable.iter().all(|byte| *byte == SECRET));
    }
}
