"""Chat templates against jinja2, rendered here and now: those of the folder TEMPLATES (*.jinja,
for licences that keep a template out of the repository), else the ones in test/data."""
import os
import subprocess
import sys
import tempfile

folder = os.environ.get("TEMPLATES") or "test/data/chat/templates"
build = os.environ.get("BUILD", "build") + "/release"
subprocess.run(["make", build + "/real_chat"], check=True)
with tempfile.TemporaryDirectory() as tmp:
    cases = os.path.join(tmp, "cases.json")
    subprocess.run([sys.executable, "scripts/data/make_chat_data.py", "--real", folder, "--out",
                    cases], check=True)
    sys.exit(subprocess.run([build + "/real_chat", cases]).returncode)
