#!/usr/bin/env bash
# collect_sources.sh FOLDER [PACKAGE ...]: the C code of Debian's source packages, one folder a package
#
# Needs apt and a network, no root: package lists and archives lie in FOLDER.apt, the system's are not touched.
# FOLDER/packages.txt says which version was taken. Packages that are there already are not fetched again.
set -euo pipefail
[ $# -ge 1 ] || { sed -n 2,4p "$0" >&2; exit 2; }
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

for package in "${packages[@]}"; do
  [ ! -d "$folder/$package" ] || continue
  echo "$package"
  rm -rf "$apt/$package" && mkdir "$apt/$package"
  (cd "$apt/$package" && apt-get "${options[@]}" source --download-only "$package")
  mkdir "$apt/$package/tree"
  for archive in "$apt/$package"/*.orig.tar.*; do
    case $archive in *.asc) continue ;; esac
    # drivers are three quarters of the kernel, and much of them are lists of registers that programs wrote
    tar xf "$archive" -C "$apt/$package/tree" --strip-components=1 --wildcards --exclude='linux-*/drivers/*' '*.c' '*.h'
  done
  find "$apt/$package/tree" -type l -delete
  mv "$apt/$package/tree" "$folder/$package"
  (cd "$apt/$package" && ls ./*.dsc | sed 's/^..//; s/\.dsc$//; s/_/ /') >> "$folder/packages.txt"
done
sort -u -o "$folder/packages.txt" "$folder/packages.txt"
du -sh --apparent-size "$folder"
