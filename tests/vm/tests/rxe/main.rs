//! The soft provider and the kernel's rxe, each as the other's peer.

mod operations;
