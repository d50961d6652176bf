// Starts Pyodide with a folder of this machine as its site-packages, and another at /extra; runs a program.
const [module, site, extra, program, ...variables] = process.argv.slice(2);
const { loadPyodide } = await import(module);
const python = await loadPyodide({
  env: Object.fromEntries(variables.map((text) => text.split("="))),
  fsInit: async (FS, { sitePackages }) => {
    for (const [root, place] of [[site, sitePackages], [extra, "/extra"]]) {
      FS.mkdirTree(place);
      FS.mount(FS.filesystems.NODEFS, { root }, place);
    }
  },
});
python.runPython(program);
