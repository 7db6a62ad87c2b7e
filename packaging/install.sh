#!/bin/sh
# Installs gdr, libgdrapi.so.2 and what belongs to them from this folder, or removes them.
#
#   ./install.sh                        install below /usr/local
#   ./install.sh --prefix ~/gdr         install below another folder
#   ./install.sh --prefix ~/gdr --uninstall
#   ./install.sh --destdir /tmp/root    install below /tmp/root/usr/local, to make a package
set -eu

prefix=/usr/local
destdir=
action=install

fail() {
    echo "install.sh: $1" >&2
    exit 64
}

while [ $# -gt 0 ]; do
    case $1 in
        --prefix | --destdir)
            [ $# -gt 1 ] || fail "$1 needs a folder"
            case $2 in
                /*) ;;
                *) fail "$1 $2: not an absolute path; begin it with /" ;;
            esac
            if [ "$1" = --prefix ]; then prefix=${2%/}; else destdir=${2%/}; fi
            shift
            ;;
        --uninstall) action=uninstall ;;
        -h | --help)
            sed -n '2,7s/^# \{0,1\}//p' "$0"
            exit 0
            ;;
        *) fail "$1: no such option; --help lists them" ;;
    esac
    shift
done
case $prefix in
    *[!A-Za-z0-9/._+-]*) fail "--prefix $prefix: systemd's units and pkg-config's files cannot contain this path" ;;
esac

root=$destdir$prefix
list=$root/share/gdr/installed-files

# Removes those of the folders, the deepest first, that are empty.
remove_empty() {
    for folder in $1; do
        rmdir "$root/$folder" 2> /dev/null || true
    done
}

# Removes what a list has, and the list.
remove() {
    folders=$(grep '/$' "$1" | sort -r || true)
    while read -r file; do
        case $file in */) ;; *) rm -f "$root/$file" ;; esac
    done < "$1"
    rm -f "$1"
    remove_empty "$folders"
}

# Makes a folder and those above it, and lists those that did not exist.
make_folder() {
    if [ ! -d "$root/$1" ]; then
        case $1 in */*) make_folder "${1%/*}" ;; esac
        mkdir "$root/$1"
        echo "$1/" >> "$new_list"
    fi
}

if [ "$action" = uninstall ]; then
    [ -f "$list" ] || fail "$list does not exist: gdr is not installed below ${prefix:-/}, or by a package"
    remove "$list"
    rmdir "$root" 2> /dev/null || true
    echo "gdr is removed from $root"
    exit 0
fi

source=$(cd "$(dirname "$0")" && pwd)
cd "$source"
mkdir -p "$root"
new_list=$root/gdr-installed-files.new
echo share/gdr/installed-files > "$new_list"
# Folders that an older version made.
if [ -f "$list" ]; then grep '/$' "$list" >> "$new_list" || true; fi
make_folder share/gdr
for file in $(find bin include lib libexec share ! -type d | LC_ALL=C sort); do
    make_folder "${file%/*}"
    new=$root/$file.new
    case $file in
        lib/systemd/* | libexec/*)
            sed "s#@prefix@#$prefix#g" "$file" > "$new"
            case $file in libexec/*) chmod 755 "$new" ;; *) chmod 644 "$new" ;; esac
            ;;
        *) cp -P "$file" "$new" ;;
    esac
    # Renamed, because a running program may have the old file mapped.
    mv -f "$new" "$root/$file"
    echo "$file" >> "$new_list"
done
# What only an older version had.
if [ -f "$list" ]; then
    grep -vxFf "$new_list" "$list" > "$list.old" || true
    remove "$list.old"
fi
mv "$new_list" "$list"
remove_empty "$(grep '/$' "$list" | sort -r || true)"

if [ -z "$destdir" ] && [ "$(id -u)" = 0 ] && command -v ldconfig > /dev/null; then
    ldconfig
fi
echo "gdr is installed below $root"
if [ -z "$destdir" ]; then
    case :$PATH: in
        *:"$prefix/bin":*) ;;
        *) echo "to use it: export PATH=\"$prefix/bin:\$PATH\" LD_LIBRARY_PATH=\"$prefix/lib\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}\"" ;;
    esac
fi
