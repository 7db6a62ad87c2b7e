//! Texts that speak of errors and report none.

/// Manuals, rules for alerts, commit messages, source code and searches.
pub(crate) const MENTIONS: &[&str] = &[
    "- alert: GpuLost\n  expr: increase(kernel_matches_total{pattern=\"Xid .*: 79,\"}[5m]) > 0\n  annotations: { summary: \"GPU has fallen off the bus\" }",
    "      summary: \"transport retry counter exceeded on {{ $labels.device }}\"",
    "    - regex: 'GPU has fallen off the bus'",
    "docs: explain what \"transport retry counter exceeded\" and \"local protection error\" mean",
    "fix(net): retry when a transport retry counter exceeded error comes",
    "Troubleshooting, step 4. If a worker stops with \"ibv_reg_mr_iova2 failed with error Bad address\", see the page on peer memory.",
    "The words `GPU has fallen off the bus` stand for Xid 79 in this table.",
    "When the log shows GPU has fallen off the bus, power the machine off and on.",
    "## transport retry counter exceeded",
    "grep -n \"fallen off the bus\" /var/log/kern.log",
    "# dmesg | grep -i \"nvidia_peermem: Unknown symbol ib_register_peer_memory_client\"",
    "    printf(\"transport retry counter exceeded\\n\");",
    "if line.contains(\"GPU has fallen off the bus\") {",
    "    assert_in(\"local protection error\", text)",
];
