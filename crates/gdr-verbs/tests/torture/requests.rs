//! Calls that post requests, singly and in lists.

use std::ffi::{c_int, c_void};
use std::ptr;

use gdr_verbs_sys::ibv_qp_type as Type;
use gdr_verbs_sys::*;

use crate::calls::{Caller, LEN, arena, count};
use crate::handles::{ADDRESSES, PAIRS, REGIONS};
use crate::verbs;

impl Caller {
    /// Fills the segments of request `n`.
    fn fill(&mut self, n: usize, is_inline: bool) {
        let (arena, random) = (arena(), &mut self.random);
        for segment in &mut self.segments[n] {
            let region = REGIONS.any(random);
            segment.addr = arena.writable as u64 + random.below(LEN - (1 << 17));
            segment.length = match (is_inline, random.once_in(10)) {
                (true, false) => random.below(64) as u32,
                (true, true) => random.below(4000) as u32,
                (false, false) => random.below(9000) as u32,
                (false, true) => random.edge(),
            };
            segment.lkey = match region.is_null() || random.once_in(20) {
                true => random.next() as u32,
                // SAFETY: as in `close`.
                false => unsafe { (*region).lkey },
            };
            if !is_inline && random.once_in(20) {
                segment.addr = random.next();
            }
        }
    }

    /// Returns the number of segments of a request: at most as many as exist, unless the library must refuse it.
    fn segment_count(&mut self) -> c_int {
        let random = &mut self.random;
        match random.below(12) {
            0 => random.below(40) as c_int,
            1 => [-1, i32::MAX, i32::MIN, 1 << 16, 33][random.below(5) as usize],
            _ => random.below(4) as c_int,
        }
    }

    pub(crate) fn post_send(&mut self) {
        let pair = PAIRS.any(&mut self.random);
        if pair.is_null() {
            return;
        }
        let requests = self.random.below(4) as usize + 1;
        for n in 0..requests {
            let is_inline = self.random.once_in(4);
            self.fill(n, is_inline);
            let count = self.segment_count();
            let random = &mut self.random;
            let region = REGIONS.any(random);
            let mut wr = ibv_send_wr {
                wr_id: random.next(),
                sg_list: self.segments[n].as_mut_ptr(),
                num_sge: count,
                opcode: ibv_wr_opcode(random.below(7) as u32),
                send_flags: random.next() as u32 & 0b111,
                ..Default::default()
            };
            if is_inline {
                wr.send_flags |= ibv_send_flags::IBV_SEND_INLINE.0;
            }
            if random.once_in(20) {
                wr.opcode = ibv_wr_opcode(random.edge());
            }
            // SAFETY: as in `close`.
            unsafe {
                let rkey = match region.is_null() {
                    true => random.next() as u32,
                    false => (*region).rkey,
                };
                let at = arena().writable as u64 + random.below(LEN);
                if (*pair).qp_type == Type::IBV_QPT_UD {
                    wr.wr.ud.ah = ADDRESSES.any(random);
                    wr.wr.ud.remote_qpn = random.mostly((*pair).qp_num);
                    wr.wr.ud.remote_qkey = 0x11;
                } else if matches!(wr.opcode.0, 5 | 6) {
                    wr.wr.atomic.remote_addr = at & !7;
                    wr.wr.atomic.rkey = rkey;
                    self.segments[n][0].length = 8;
                    wr.num_sge = 1;
                } else {
                    wr.wr.rdma.remote_addr = at;
                    wr.wr.rdma.rkey = rkey;
                }
            }
            self.sends[n] = wr;
        }
        let first = self.sends.as_mut_ptr();
        for n in 0..requests {
            self.sends[n].next = match n + 1 < requests {
                // SAFETY: the element is within the array.
                true => unsafe { first.add(n + 1) },
                // Some lists are circular.
                false if self.random.once_in(30) => first,
                false => ptr::null_mut(),
            };
        }
        let mut bad = ptr::null_mut();
        // SAFETY: as in `close`; requests and segments exist unless the counts must be refused, and queue pairs have at
        // most 32 segments.
        let status = unsafe { verbs::post_send(pair, first, &mut bad) };
        assert!(
            status == 0 || !bad.is_null(),
            "errno {status} without a bad request"
        );
        count(status == 0);
    }

    /// Builds a list of receives.
    pub(crate) fn build_receives(&mut self) -> *mut ibv_recv_wr {
        let requests = self.random.below(4) as usize + 1;
        let first = self.receives.as_mut_ptr();
        for n in 0..requests {
            self.fill(n, false);
            self.receives[n] = ibv_recv_wr {
                wr_id: self.random.next(),
                sg_list: self.segments[n].as_mut_ptr(),
                num_sge: self.segment_count(),
                next: match n + 1 < requests {
                    // SAFETY: the element is within the array.
                    true => unsafe { first.add(n + 1) },
                    false if self.random.once_in(30) => first,
                    false => ptr::null_mut(),
                },
            };
        }
        first
    }

    pub(crate) fn post_recv(&mut self) {
        let pair = PAIRS.any(&mut self.random);
        if !pair.is_null() {
            let (list, mut bad) = (self.build_receives(), ptr::null_mut());
            // SAFETY: as in `post_send`.
            let status = unsafe { verbs::post_recv(pair, list, &mut bad) };
            assert!(
                status == 0 || !bad.is_null(),
                "errno {status} without a bad request"
            );
            count(status == 0);
        }
    }

    pub(crate) fn wr_post(&mut self) {
        let pair = PAIRS.any(&mut self.random);
        // SAFETY: as in `close`.
        let qp = unsafe { verbs::ibv_qp_to_qp_ex(pair) };
        if qp.is_null() {
            return;
        }
        let requests = self.random.below(5);
        // SAFETY: as in `close`; functions that the queue pair does not support are null.
        unsafe {
            let _ = ibv_wr_start(qp);
            for _ in 0..requests {
                let is_inline = self.random.once_in(2);
                self.fill(0, is_inline);
                let (segments, random) = (self.segments[0], &mut self.random);
                let (key, at) = (segments[1].lkey, segments[1].addr);
                (*qp).wr_id = random.next();
                (*qp).wr_flags = random.next() as u32 & 0b1111;
                let _ = match random.below(7) {
                    0 => ibv_wr_rdma_write(qp, key, at),
                    1 => ibv_wr_rdma_write_imm(qp, key, at, 3),
                    2 => ibv_wr_send(qp),
                    3 => ibv_wr_send_imm(qp, 4),
                    4 => ibv_wr_rdma_read(qp, key, at),
                    5 => ibv_wr_atomic_fetch_add(qp, key, at & !7, 1),
                    _ => Ok(()),
                };
                if (*pair).qp_type == Type::IBV_QPT_UD
                    && let Some(set) = (*qp).wr_set_ud_addr
                {
                    set(qp, ADDRESSES.any(random), (*pair).qp_num, 0x11);
                }
                let place: *mut c_void =
                    ptr::with_exposed_provenance_mut(segments[0].addr as usize);
                let _ = match (is_inline, random.once_in(2)) {
                    (true, _) => ibv_wr_set_inline_data(qp, place, segments[0].length as usize),
                    (false, true) => {
                        let count = random.below(40) as usize;
                        ibv_wr_set_sge_list(qp, count, segments.as_ptr())
                    }
                    (false, false) => {
                        ibv_wr_set_sge(qp, segments[0].lkey, segments[0].addr, segments[0].length)
                    }
                };
            }
            match self.random.below(40) {
                // The thread stays in the section.
                0 => {}
                1..=5 => drop(ibv_wr_abort(qp)),
                _ => count(ibv_wr_complete(qp).is_ok()),
            }
        }
    }
}
