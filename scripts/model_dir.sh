#!/bin/sh
# model_dir.sh SHAPE TOKENIZER OUT: a model directory for --load-format dummy that takes and gives
# text: OUT/config.json from a shape (configs/shapes/*.json) and OUT/tokenizer.json from a file of
# that name (.xz is unpacked), with tokenizer_config.json when that lies beside it.
set -eu
if [ $# -ne 3 ]; then
    echo "usage: sh scripts/model_dir.sh SHAPE.json TOKENIZER.json[.xz] OUT" >&2
    exit 2
fi
mkdir -p "$3"
cp "$1" "$3/config.json"
case $2 in
*.xz) xz -dc "$2" >"$3/tokenizer.json" ;;
*) cp "$2" "$3/tokenizer.json" ;;
esac
conf=$(dirname "$2")/tokenizer_config.json
[ ! -e "$conf" ] || cp "$conf" "$3/tokenizer_config.json"
echo "$3: $(basename "$1") with $(basename "$2")"
