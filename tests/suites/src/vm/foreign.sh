# Runs unit tests of crates, and the programs of the archive, in the guest. The arguments are the parts
# of names to which the tests are restricted. The soft provider has the namespace "near" for itself, as
# in the tests on rxe.
status=0
# busybox would run an `ip` of its own.
near="/usr/bin/ip netns exec near"

# Runs commands if the filters behind them select their name, and prints the outcome as the test harness
# does.
archive_test() {
    name=archive::$1
    commands=$2
    shift 2
    if [ $# -gt 0 ]; then
        selected=no
        for filter; do
            case $name in *"$filter"*) selected=yes ;; esac
        done
        [ $selected = yes ] || return 0
    fi
    if $near busybox timeout 240 busybox sh -eu -c "$commands"; then
        echo "test $name ... ok"
    else
        echo "test $name ... FAILED"
        status=1
    fi
}

# Tests have a shell read scripts.
busybox ln -s busybox /usr/bin/sh

for program in /gdr/unit/*; do
    case $program in *.so) continue ;; esac
    echo "unit tests of ${program##*/}"
    $near busybox timeout 900 "$program" --color=never "$@" || {
        echo "${program##*/} exits with $?"
        status=1
    }
done

busybox tar xzf /gdr/archive.tar.gz -C /tmp
cd /tmp/gdr-*
PATH=$PWD/bin:$PATH
archive_test version "gdr version" "$@"
archive_test doctor 'gdr doctor || test $? -le 3' "$@"
archive_test sanity "GDR_BACKEND=sim gdr sanity" "$@"
archive_test loopback "gdr loopback | busybox tee /tmp/loopback; busybox grep -q PASS /tmp/loopback" "$@"
archive_test copylat "gdr copylat --simulate -s 4096 -w 1 -r 1" "$@"
archive_test library "GDR_BACKEND=sim LD_LIBRARY_PATH=lib /gdr/write_and_read | busybox grep 'read back'" "$@"
cd /
echo "gdr-vm: exit $status"
