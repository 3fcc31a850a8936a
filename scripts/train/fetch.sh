#!/bin/sh
# Fetches the documentation packages and unpacks them (nothing is installed, no service started).
#   sh scripts/train/fetch.sh DIR     -> DIR/debs/*.deb, DIR/ex/PACKAGE/usr/...
# Debian 12; the list is the one of configs/models/DATA.md.
set -eu
mkdir -p "$1/debs" "$1/ex"
cd "$1/debs"
for p in python3.11-doc libpython3.11-stdlib postgresql-doc-15 sqlite3-doc cmake-doc rust-doc nodejs-doc \
    python-django-doc python-sqlalchemy-doc twisted-doc sphinx-doc apache2-doc python-flask-doc \
    python-werkzeug-doc python-tornado-doc python-aiohttp-doc python-requests-doc python-cryptography-doc \
    llvm-14-doc wordnet-base dict-jargon dict-devil bible-kjv-text bible-kjv; do
    ls "${p}"_*.deb >/dev/null 2>&1 || apt-get download "$p"
    [ -d "../ex/$p/usr" ] || { mkdir -p "../ex/$p" && dpkg -x "${p}"_*.deb "../ex/$p"; }
done
