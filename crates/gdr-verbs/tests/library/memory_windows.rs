//! Memory windows of both types, and the requests that bind and invalidate them.

use std::ptr::NonNull;

use gdr_verbs_sys::*;

use crate::side::*;

const SUCCESS: ibv_wc_status = ibv_wc_status::IBV_WC_SUCCESS;
const REFUSED: ibv_wc_status = ibv_wc_status::IBV_WC_REM_ACCESS_ERR;

/// Two sides; the second one has memory that permits the binding of windows, and a window.
struct Windows {
    a: Side,
    b: Side,
    source: NonNull<ibv_mr>,
    target: NonNull<ibv_mr>,
    window: NonNull<ibv_mw>,
    _near: Box<[u64; 8]>,
    far: Box<[u64; 8]>,
}

impl Windows {
    fn new(kind: ibv_mw_type) -> Self {
        let (a, b) = sides();
        let (mut near, mut far) = (Box::new([7; 8]), Box::new([0; 8]));
        let source = a.register(&mut near[..]);
        let access = all_access() | ibv_access_flags::IBV_ACCESS_MW_BIND;
        let address = far.as_mut_ptr().cast();
        // SAFETY: the words live until the region is deregistered.
        let target = unsafe { library().reg_mr(b.domain, address, 64, access) }.unwrap();
        // SAFETY: the context is open, and the domain exists.
        let window = unsafe { ((*b.context).ops.alloc_mw.unwrap())(b.domain, kind) };
        Self {
            a,
            b,
            source,
            target,
            window: NonNull::new(window).unwrap(),
            _near: near,
            far,
        }
    }

    /// Returns the second to fourth word of the memory, with access for WRITEs.
    fn range(&self) -> ibv_mw_bind_info {
        ibv_mw_bind_info {
            mr: self.target.as_ptr(),
            addr: self.base() + 8,
            length: 24,
            mw_access_flags: ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0,
        }
    }

    fn base(&self) -> u64 {
        // SAFETY: the region is alive.
        unsafe { self.target.as_ref() }.addr.addr() as u64
    }

    fn rkey(&self) -> u32 {
        // SAFETY: the window is alive.
        unsafe { self.window.as_ref() }.rkey
    }

    /// Binds the window of type 1.
    fn bind(&self, range: ibv_mw_bind_info) -> i32 {
        let mut bind = ibv_mw_bind {
            wr_id: 9,
            send_flags: ibv_send_flags::IBV_SEND_SIGNALED.0,
            bind_info: range,
        };
        // SAFETY: the objects are alive.
        unsafe {
            let bind_mw = (*self.b.context).ops.bind_mw.unwrap();
            bind_mw(self.b.pair, self.window.as_ptr(), &mut bind)
        }
    }

    /// Posts a request that binds the window of type 2 with a key.
    fn post_bind(&self, rkey: u32, range: ibv_mw_bind_info) -> Result<(), Errno> {
        let mut wr = signalled(ibv_wr_opcode::IBV_WR_BIND_MW);
        wr.__bindgen_anon_2.bind_mw.mw = self.window.as_ptr();
        wr.__bindgen_anon_2.bind_mw.rkey = rkey;
        wr.__bindgen_anon_2.bind_mw.bind_info = range;
        self.b.send(wr, &mut [])
    }

    /// Returns the next key of the window.
    fn next_key(&self) -> u32 {
        let key = self.rkey();
        (key & !0xff) | (key.wrapping_add(1) & 0xff)
    }

    /// Returns the status of the peer's request for a word.
    fn access(&self, opcode: ibv_wr_opcode, rkey: u32, word: u64) -> ibv_wc_status {
        let mut wr = signalled(opcode);
        wr.wr.rdma.rkey = rkey;
        wr.wr.rdma.remote_addr = self.base() + 8 * word;
        self.a.send(wr, &mut [segment(self.source, 0, 8)]).unwrap();
        self.a.completion().status
    }

    fn write(&self, rkey: u32, word: u64) -> ibv_wc_status {
        self.access(ibv_wr_opcode::IBV_WR_RDMA_WRITE, rkey, word)
    }

    fn deregister(&self) -> Result<(), Errno> {
        // SAFETY: the region is alive.
        let ended = unsafe { library().ibv_dereg_mr(self.target.as_ptr()) };
        ended.map_err(|error| error.errno())
    }

    fn free(&self) {
        // SAFETY: the window is alive.
        unsafe {
            let dealloc = (*self.b.context).ops.dealloc_mw.unwrap();
            assert_eq!(dealloc(self.window.as_ptr()), 0);
        }
    }

    fn close(self) {
        self.free();
        self.close_rest();
    }

    fn close_rest(self) {
        self.deregister().unwrap();
        deregister(self.source);
        self.a.close();
        self.b.close();
    }
}

fn signalled(opcode: ibv_wr_opcode) -> ibv_send_wr {
    ibv_send_wr {
        opcode,
        send_flags: ibv_send_flags::IBV_SEND_SIGNALED.0,
        ..Default::default()
    }
}

/// Posts a request that invalidates a key.
fn invalidate(side: &Side, opcode: ibv_wr_opcode, rkey: u32) {
    let mut wr = signalled(opcode);
    wr.__bindgen_anon_1.invalidate_rkey = rkey;
    side.send(wr, &mut []).unwrap();
}

#[test]
fn a_window_of_type_1_permits_its_range_and_rights_until_it_is_bound_again() {
    for (word, opcode, expected) in [
        (1, ibv_wr_opcode::IBV_WR_RDMA_WRITE, SUCCESS),
        (3, ibv_wr_opcode::IBV_WR_RDMA_WRITE, SUCCESS),
        (0, ibv_wr_opcode::IBV_WR_RDMA_WRITE, REFUSED),
        (4, ibv_wr_opcode::IBV_WR_RDMA_WRITE, REFUSED),
        (1, ibv_wr_opcode::IBV_WR_RDMA_READ, REFUSED),
    ] {
        let windows = Windows::new(ibv_mw_type::IBV_MW_TYPE_1);
        let before = windows.rkey();
        assert_eq!(windows.bind(windows.range()), 0);
        let bound = windows.b.completion();
        let kind = ibv_wc_opcode::IBV_WC_BIND_MW;
        assert_eq!(
            (bound.status, bound.opcode, bound.wr_id),
            (SUCCESS, kind, 9)
        );
        assert_ne!(windows.rkey(), before);
        let rkey = windows.rkey();
        assert_eq!(windows.access(opcode, rkey, word), expected, "{word}");
        let written = u64::from(expected == SUCCESS) * 7;
        assert_eq!(windows.far[word as usize], written);
        windows.close();
    }
    let windows = Windows::new(ibv_mw_type::IBV_MW_TYPE_1);
    assert_eq!(windows.bind(windows.range()), 0);
    let first = windows.rkey();
    // A bind of zero length unbinds the window, so the region can be deregistered.
    let nothing = ibv_mw_bind_info {
        length: 0,
        ..windows.range()
    };
    assert_eq!(windows.deregister(), Err(Errno::EBUSY));
    assert_eq!(windows.bind(nothing), 0);
    assert_eq!([0; 2].map(|_| windows.b.completion().status), [SUCCESS; 2]);
    assert_eq!(windows.write(first, 1), REFUSED);
    assert_eq!(windows.far[..], [0; 8]);
    windows.close();
}

#[test]
fn a_window_of_type_2_ends_by_a_request_of_either_side_and_by_its_destruction() {
    for end in 0..3 {
        let windows = Windows::new(ibv_mw_type::IBV_MW_TYPE_2);
        let (rkey, unbound) = (windows.next_key(), windows.rkey());
        windows.post_bind(rkey, windows.range()).unwrap();
        assert_eq!(windows.b.completion().status, SUCCESS);
        assert_eq!(windows.rkey(), rkey);
        assert_eq!(windows.write(rkey, 1), SUCCESS);
        match end {
            0 => {
                invalidate(&windows.b, ibv_wr_opcode::IBV_WR_LOCAL_INV, rkey);
                let done = windows.b.completion();
                assert_eq!(
                    (done.status, done.opcode),
                    (SUCCESS, ibv_wc_opcode::IBV_WC_LOCAL_INV)
                );
            }
            1 => {
                windows.b.receive(5, &mut []).unwrap();
                invalidate(&windows.a, ibv_wr_opcode::IBV_WR_SEND_WITH_INV, rkey);
                assert_eq!(windows.a.completion().status, SUCCESS);
                let received = windows.b.completion();
                assert_eq!((received.status, received.wr_id), (SUCCESS, 5));
                assert_ne!(received.wc_flags & ibv_wc_flags::IBV_WC_WITH_INV.0, 0);
                // SAFETY: the flag indicates that this member is set.
                let ended = unsafe { received.__bindgen_anon_1.invalidated_rkey };
                assert_eq!(ended, rkey);
            }
            _ => windows.free(),
        }
        assert_eq!(windows.write(rkey, 1), REFUSED, "{end}");
        assert_ne!(unbound, rkey);
        match end {
            2 => windows.close_rest(),
            _ => windows.close(),
        }
    }
}

#[test]
fn a_bound_window_of_type_2_is_not_bound_again_and_only_its_queue_pair_ends_it() {
    let windows = Windows::new(ibv_mw_type::IBV_MW_TYPE_2);
    let rkey = windows.next_key();
    windows.post_bind(rkey, windows.range()).unwrap();
    assert_eq!(windows.b.completion().status, SUCCESS);
    windows
        .post_bind(windows.next_key(), windows.range())
        .unwrap();
    let again = windows.b.completion().status;
    assert_eq!(again, ibv_wc_status::IBV_WC_MW_BIND_ERR);
    windows.close();
    // The key of a region is not a valid key of a window.
    let windows = Windows::new(ibv_mw_type::IBV_MW_TYPE_2);
    // SAFETY: the region is alive.
    let of_region = unsafe { windows.target.as_ref() }.rkey;
    windows.b.receive(5, &mut []).unwrap();
    invalidate(&windows.a, ibv_wr_opcode::IBV_WR_SEND_WITH_INV, of_region);
    let refused = windows.a.completion().status;
    assert_eq!(refused, ibv_wc_status::IBV_WC_REM_INV_REQ_ERR);
    windows.close();
}

#[test]
fn a_window_that_was_ended_is_bound_again_in_one_list_of_requests() {
    let windows = Windows::new(ibv_mw_type::IBV_MW_TYPE_2);
    let mut last = windows.rkey();
    for _ in 0..600 {
        let next = windows.next_key();
        windows.post_bind(next, windows.range()).unwrap();
        assert_eq!(windows.b.completion().status, SUCCESS);
        assert_eq!(windows.write(next, 2), SUCCESS);
        invalidate(&windows.b, ibv_wr_opcode::IBV_WR_LOCAL_INV, next);
        assert_eq!(windows.b.completion().status, SUCCESS);
        last = next;
    }
    assert_eq!(windows.write(last, 2), REFUSED);
    windows.close();
}

#[test]
fn what_no_window_can_be_bound_to_is_refused_when_it_is_posted() {
    let windows = Windows::new(ibv_mw_type::IBV_MW_TYPE_2);
    let (range, key) = (windows.range(), windows.next_key());
    let mut words = [0_u64; 4];
    let plain = windows.b.register(&mut words);
    let wrong = [
        (key ^ 0x100, range),
        (key, ibv_mw_bind_info { length: 0, ..range }),
        (
            key,
            ibv_mw_bind_info {
                length: 57,
                ..range
            },
        ),
        (
            key,
            ibv_mw_bind_info {
                addr: range.addr - 9,
                ..range
            },
        ),
        (
            key,
            ibv_mw_bind_info {
                mr: plain.as_ptr(),
                ..range
            },
        ),
        (
            key,
            ibv_mw_bind_info {
                mw_access_flags: 1 << 5,
                ..range
            },
        ),
    ];
    for (key, range) in wrong {
        assert_eq!(
            windows.post_bind(key, range),
            Err(Errno::EINVAL),
            "{range:?}"
        );
    }
    // No window is bound any more.
    windows.deregister().unwrap();
    windows.free();
    deregister(plain);
    deregister(windows.source);
    windows.a.close();
    windows.b.close();
}
