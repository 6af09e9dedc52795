#!/usr/bin/env bash
# collect_sources.sh FOLDER [PACKAGE[=VERSION] ...]: the C code of Debian's source packages, one folder a package
#
# Needs apt and a network, no root: package lists and archives lie in FOLDER.apt, the system's are not touched.
# Without a version, the newest is taken whose files the mirror has. FOLDER/packages.txt says which version was taken.
# Packages that are there already are not fetched again.
set -euo pipefail
[ $# -ge 1 ] || { sed -n 2,6p "$0" >&2; exit 2; }
folder=$1
shift
packages=("$@")
[ $# -ge 1 ] || packages=(linux qemu postgresql-15 git openssl systemd python3.11 vim redis curl)

mkdir -p "$folder" "$folder.apt/lists/partial" "$folder.apt/cache/archives/partial"
folder=$(cd "$folder" && pwd)
apt="$folder.apt"
apt-get indextargets --format 'deb-src $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' 'Origin: Debian' |
  sort -u > "$apt/sources.list" # this system's own mirrors
[ -s "$apt/sources.list" ] || { echo "apt knows no mirror of Debian: run apt-get update, on Debian" >&2; exit 1; }
options=(-qq -o "Dir::Etc::SourceList=$apt/sources.list" -o Dir::Etc::SourceParts=- -o "Dir::State::Lists=$apt/lists"
  -o "Dir::Cache=$apt/cache" -o "APT::Sandbox::User=$(id -un)")
apt-get "${options[@]}" update
touch "$folder/packages.txt"

versions() { # of a package in the index, newest first; a version without an epoch has epoch 0
  apt-cache "${options[@]}" showsrc --only-source "$1" 2> "$apt/error" |
    sed -n 's/^Version: //p' | sed 's/^[^:]*$/0:&/' | sort -rVu | sed 's/^0://'
}

download() { # PACKAGE VERSION: its archives into a folder of their own; false where the mirror does not have them
  rm -rf "${apt:?}/$1" && mkdir "$apt/$1"
  (cd "$apt/$1" && apt-get "${options[@]}" source --download-only "$1=$2") 2> "$apt/error" && return
  grep -Eqi '404 +not found|file not found' "$apt/error" && return 1 # a hash may have a 404 in it
  cat "$apt/error" >&2 # no network, no room: an older version would fare no better
  exit 1
}

unpacked() { # after an error of tar: ends the script, unless an archive lacks what is looked for and that is all
  if grep -Ev ': Not found in archive$|: Exiting with failure status' "$apt/error" >&2; then exit 1; fi
}

for wanted in "${packages[@]}"; do
  package=${wanted%%=*} pin=
  [ "$package" = "$wanted" ] || pin=${wanted#*=}
  if [ -d "$folder/$package" ]; then
    taken=$(sed -n "s/^$package //p" "$folder/packages.txt")
    [ -z "$pin" ] || [ "${taken#*:}" = "${pin#*:}" ] ||
      { echo "$folder/$package is version ${taken:-unknown}, not $pin: remove it to fetch $pin" >&2; exit 1; }
    continue
  fi
  echo "$package"
  known=$(versions "$package" || true)
  [ -n "$known" ] || { echo "the mirrors list no source package $package" >&2; exit 1; }
  tried=$known
  if [ -n "$pin" ]; then # a list of earlier collections may lack the epoch, as names of files do
    tried=$(grep -xE "([0-9]+:)?$(sed 's/[.+]/\\&/g' <<< "$pin")" <<< "$known" || true)
    [ -n "$tried" ] || { echo "the mirrors list no $package $pin, only:" $known >&2; exit 1; }
  fi
  version= missing=()
  for candidate in $tried; do
    if download "$package" "$candidate"; then version=$candidate && break; fi
    missing+=("$candidate")
  done
  [ -n "$version" ] || { echo "the mirror lists $package ${missing[*]} but does not have the files" >&2; exit 1; }
  [ ${#missing[@]} -eq 0 ] || echo "$package: took $version, as the mirror does not have the files of ${missing[*]}"
  mkdir "$apt/$package/tree"
  for archive in "$apt/$package"/*.orig.tar.*; do
    case $archive in *.asc) continue ;; esac
    # drivers are three quarters of the kernel, and much of them are lists of registers that programs wrote
    LC_ALL=C tar xf "$archive" -C "$apt/$package/tree" --strip-components=1 --wildcards --exclude='linux-*/drivers/*' \
      '*.c' '*.h' 2> "$apt/error" || unpacked
  done
  find "$apt/$package/tree" -type l -delete
  [ -n "$(find "$apt/$package/tree" -type f -print -quit)" ] || { echo "$package $version has no C code" >&2; exit 1; }
  { sed "/^$package /d" "$folder/packages.txt" && echo "$package $version"; } | sort > "$apt/packages.txt"
  mv "$apt/$package/tree" "$folder/$package"
  mv "$apt/packages.txt" "$folder/packages.txt"
done
du -sh --apparent-size "$folder"
